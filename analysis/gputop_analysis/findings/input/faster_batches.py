"""What makes batches come sooner: more workers, where there are cores for them, or cheaper ones."""

from __future__ import annotations

import math

from gputop_analysis.findings.advice import FREE_CORES, MAP_STYLE, NOWHERE, MovedSetting, Option
from gputop_analysis.findings.cores import BUSY_CORES, foreign_cores, won_by_workers
from gputop_analysis.findings.dialect import loader_change, loader_place, loader_site, takes
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.shares import Share
from gputop_analysis.findings.site import Site
from gputop_analysis.findings.sites import place_in_workers, runs_training, top_site
from gputop_analysis.mend import DATA_LOADER, ByArguments
from gputop_analysis.view import RunView

_CHEAPER = "make what {} for a batch cheaper, or store it prepared"
FORKED_BEFORE = (3, 14)
"""Versions of Python whose multiprocessing forks on Linux, if nothing else is asked for."""
LEAST_WON = 0.1
"""Part of the data wait that more workers must be able to win to be asked for."""


def faster_batches(run: Facts, wait: Share) -> tuple[Option, ...]:
    """More workers where there are cores for them, and what is left where there are none."""
    view, worker_count = run.view, run.loader.get("num_workers")
    if worker_count is None:
        wanted = workers_needed(view, wait)
        won = won_by_workers(view, wait, 0, wanted)
        words = (
            "prepare batches in the background, for instance by a DataLoader with "
            f"num_workers={wanted}"
        )
        return _if_won(words, won, wait), Option(cheaper(run), promises=False, last=True)
    if not worker_count:
        wanted = workers_needed(view, wait)
    else:
        wanted = _more_than(view, wait, worker_count)
    if wanted > worker_count:
        won = won_by_workers(view, wait, worker_count, wanted)
    else:
        won = 0.0
    settings: dict[str, object] = {"num_workers": wanted, "prefetch_factor": 4}
    if not worker_count:
        settings = {"num_workers": wanted, "persistent_workers": True, "prefetch_factor": 4}
    words = loader_change(run, **settings)
    if worker_count:
        words = f"raise num_workers from {worker_count} to {wanted}: {words}"
    else:
        words = f"set {words}"
    mend = _with_workers(run, worker_count, settings)
    return _if_won(words, won, wait, mend), Option(
        _without_workers(run, wait, worker_count, wanted), promises=False, last=True
    )


def cheaper(run: Facts) -> str:
    """That batches are to cost less, at the line where most of what they cost lies."""
    made_at = made_by_dataset(run)
    return _CHEAPER.format(f"{made_at} does" if made_at else "the dataset and its transforms do")


def made_by_dataset(run: Facts) -> str | None:
    """The line in which most of the time for batches goes, ``data.py:40 __getitem__``; None where
    no line is sure, or it is the loop's own.
    """
    place = making(run)
    if place is None or place.site is None or runs_training(run.view, run.rank, place.site):
        return None
    return place.site


def in_workers(run: Facts) -> str:
    """What the loader's workers do, as the next part of an evidence; empty where not seen."""
    place = making(run) if run.loader.get("num_workers") else None
    return f"; in its workers {place.words}" if place is not None else ""


def making(run: Facts) -> Site | None:
    """Where the loader's workers, or the training itself where it has none, make their batches;
    looked for once a view.
    """
    view, key = run.view, f"making of batches on {run.rank}"
    if key not in view.known:
        if run.loader.get("num_workers"):
            view.known[key] = place_in_workers(view, run.rank)
        else:
            view.known[key] = top_site(view, "data", rank=run.rank)
    return view.known[key]


def where_to_mend(run: Facts) -> str | None:
    """The line that makes most of the batches; the loader's where none does, as the fix then is
    with its workers.
    """
    return made_by_dataset(run) or loader_site(run)


def _if_won(words: str, won: float, wait: Share, mend: ByArguments | None = None) -> Option:
    """More workers, offered where they win something."""
    return Option(
        words,
        needs=() if _worth(won, wait) else (FREE_CORES,),
        wins_ms=won,
        lever=MovedSetting("num_workers", 1),
        mend=mend,
    )


def _worth(won: float, wait: Share) -> bool:
    """Whether more workers win enough of the data wait to be asked for."""
    return won > LEAST_WON * wait.mean_ms


def _with_workers(run: Facts, now: int, settings: dict[str, object]) -> ByArguments | None:
    """The same as an edit: not where workers would each give all samples, or would not be forked
    and so need a script that can be imported.
    """
    forked = now or run.version("python") < FORKED_BEFORE
    if run.loader.get("iterable") or not forked or loader_site(run) is None:
        return None
    return ByArguments(DATA_LOADER, {**settings}, had={"num_workers": now})


def _more_than(view: RunView, wait: Share, now: int) -> int:
    """Workers that would keep up with the rest of the step, at most what the cores can run."""
    rest_ms = max(wait.wall_ms - wait.ms.value, 1e-3)
    wanted = math.ceil(now * wait.wall_ms / rest_ms)
    return min(wanted, max(now, _most_workers(Facts(view, wait.rank))))


def _without_workers(run: Facts, wait: Share, now: int, then: int) -> str:
    """What can be done where no core is left for a worker."""
    setting_text = f" (num_workers={now})" if now else ""
    if not run.cores:
        return cheaper(run) + setting_text
    foreign = foreign_cores(run.view, run.view.host_of(run.rank))
    if foreign >= BUSY_CORES:
        taken = f", {foreign:.1f} of {run.cores} are taken by other programs"
    elif _worth(won_by_workers(run.view, wait, now, then, threads=1), wait):
        return (
            f"{cheaper(run)}; or {then} workers and fewer of torch's {run.threads} threads "
            f"(OMP_NUM_THREADS={max(1, run.cores - then)}): these have the {run.cores} cores in "
            f"use, and how much of that waits in a loop for the next operator is not known"
            f"{setting_text}"
        )
    else:
        taken = ""
    return f"{cheaper(run)}; more workers would find no free core{taken}{setting_text}"


def whole_batches(run: Facts) -> tuple[Option, ...]:
    """Batches that are made in a few milliseconds: a worker would cost as much as it saves."""
    return (
        Option(
            f"take whole batches from the dataset{loader_place(run)} (a batch sampler and "
            "batch_size=None) instead of collating samples: a worker process costs as "
            "much as it saves here",
            needs=(MAP_STYLE,) if takes(run, "batch_sampler") else (NOWHERE,),
        ),
        Option(
            "make what __getitem__ and the collate function do cheaper", promises=False, last=True
        ),
    )


def workers_needed(view: RunView, wait: Share) -> int:
    """Workers to make a batch in the rest of a step's time, at most a rank's cores."""
    rest_ms = max(wait.wall_ms - wait.ms.value, 1e-3)
    wanted = max(2, math.ceil(1.25 * wait.ms.value / rest_ms))
    return min(wanted, _most_workers(Facts(view, wait.rank)))


def _most_workers(run: Facts) -> int:
    """As many as a rank has cores; 16 where they are not known."""
    return max(1, run.cores // run.ranks_here) if run.cores else 16
