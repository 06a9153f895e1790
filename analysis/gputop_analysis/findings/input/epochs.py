"""Beginning with a loader: a pause at each epoch, or a new start every few steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gputop_agent.contracts import LoaderInUse
from gputop_analysis.findings.dialect import loader_change, loader_place, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.input.data_wait import data_wait
from gputop_analysis.findings.input.loader_looks import Looks, epoch_starts, looks, surely
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.option import Option
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.sites import samples_where
from gputop_analysis.mend import DATA_LOADER, ByArguments, ByRule
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import RankSeries
from gputop_analysis.stats import block_bootstrap
from gputop_analysis.text import counted, percent
from gputop_analysis.view import RunView

TIMES = 10.0
"""A pause is usually at least so many times the usual data wait of a step."""
LEAST_MS, LEAST_SHARE = 100.0, 0.02
MUCH = 0.10
"""Of the time, in pauses of any length: short epochs."""


@finding(
    id="IN05",
    name="epoch-boundary stall",
    family="input",
    cause="input",
    trigger="two epochs or more begin with pauses, the median over ten times the usual data wait, "
    f"together {percent(LEAST_SHARE)} of the time and each {LEAST_MS:g} ms, or together "
    f"{percent(MUCH)}, while workers end and start anew",
    fix="persistent_workers=True",
    no_use="without workers; where the epoch's own work takes the time",
    reads="steps.data_ns of each epoch's first fetch, the workers' process ids",
    silent="fewer than two epochs inside the window",
    traps="work that an epoch really needs, such as shuffling a huge index",
    seen_on=CPU,
)
def epoch_boundary_stall(view: RunView, spec: Spec) -> Finding | None:
    """Worker processes are stopped and started for each epoch, and the training waits meanwhile."""
    wait = data_wait(view)
    rank = wait.rank if wait else next(iter(view.ranks), None)
    if rank is None:
        return None
    loader = view.hello(rank).get("dataloader") or {}
    _, pauses_ms = epoch_starts(view).get(rank, ((), ()))
    if len(pauses_ms) < 2 or not loader.get("num_workers") or loader.get("persistent_workers"):
        return None
    series = view.per_rank[rank]
    usual_ms = wait.mean_ms if wait else float(np.median(series.phase_ms("data")))
    stalls_ms = pauses_ms - usual_ms
    steps, wall_ms = series.total_steps(), float(series.rows["wall_ns"].sum()) / 1e6
    share = float(stalls_ms.sum()) / wall_ms
    middle_ms = float(np.median(pauses_ms))
    long_enough = middle_ms > TIMES * usual_ms and (middle_ms > LEAST_MS or share > MUCH)
    if not long_enough or share < LEAST_SHARE:
        return None
    won = block_bootstrap(stalls_ms, np.full(len(stalls_ms), steps / len(stalls_ms)), block=1)
    each_ms = float(stalls_ms.mean())
    change = loader_change(Facts(view, rank), persistent_workers=True)
    start_method, started_text = loader.get("start_method"), ""
    if start_method:
        started_text = f", started by {start_method}"
    if start_method == "spawn":
        change += ", or multiprocessing_context='fork'"
    return spec.make(
        severity="high" if share > 0.25 else "medium",
        title=f"each epoch begins with a pause of {each_ms:,.0f} ms: it starts "
        f"{counted(loader['num_workers'], 'worker')}",
        evidence=f"{len(stalls_ms)} epochs began with {pauses_ms.min():,.0f} to "
        f"{pauses_ms.max():,.0f} ms without a batch; a step usually waits {usual_ms:.1f} ms; one "
        f"every {steps / len(stalls_ms):,.0f} steps or so, {share * 100:.0f} % of the time; "
        f"persistent_workers=False{started_text}",
        fix=Option(
            change,
            mend=ByArguments(
                DATA_LOADER, {"persistent_workers": True}, had={"persistent_workers": False}
            ),
        ),
        rank=everybody(view),
        site=loader_site(Facts(view, rank)),
        recoverable_ms_per_step=won.value,
        interval_ms_per_step=(won.low, won.high),
        proof=Proof(
            statistic="median pause at the beginning of an epoch / usual data wait of a step",
            value=middle_ms / max(usual_ms, 1e-3),
            threshold=TIMES,
            unit="times",
            formula=f"recoverable = sum(pause - usual data wait) / steps = {won.value:.3f} ms per "
            "step",
            inputs=(
                Input("epochs that began", len(stalls_ms), "", f"loader events, rank {rank}"),
                Input(
                    "pause", each_ms, "ms", "mean of end_ms + start_ms + first_ms - usual data wait"
                ),
                Input(
                    "usual data wait", usual_ms, "ms", f"steps.data_ns, rank {rank}, other steps"
                ),
                Input("steps", steps, "", f"steps.n_steps, rank {rank}"),
            ),
        ),
    )


FEW_STEPS = 20
"""A loader that begins again more often than this is started anew all the time."""
STARTING = 0.10
ENOUGH_STARTS = 5
OTHERS = 0.2
"""Part of the steps that must go on with an iterator for the usual fetch to be known."""
_SHUFFLING = ("torch/utils/data/sampler.py", "torch/utils/data/dataloader.py")
"""Place of the training while a loader without workers begins: its sampler makes an order."""


@finding(
    id="IN15",
    name="loader started anew",
    family="input",
    cause="input",
    trigger=f"an iterator of the training's loader is made more often than every {FEW_STEPS} "
    f"steps, and beginning with it takes more than {percent(STARTING)} of the time",
    fix="make the DataLoader and its iterator once, and take all batches from it; "
    "persistent_workers=True",
    explains=("IN01", "IN02", "IN05"),
    no_use=(
        "persistent_workers: without workers; where each pass over the data is one step on purpose"
    ),
    reads=(
        "how many iterators of the loader were made, what making them and their first fetches "
        "took; where a loader without workers begins, stack samples in torch's sampler"
    ),
    silent="fewer than five iterators; too few stack samples in the data phase",
    traps="a batch that is all of the data, which makes each step an epoch",
    seen_on=CPU,
)
def loader_started_anew(view: RunView, spec: Spec) -> Finding | None:
    """Workers are forked, or all of the data is shuffled, for the sake of a few batches."""
    if (restarts := started_anew(view)) is None:
        return None
    rank = restarts.rank
    series, loader = view.per_rank[rank], view.hello(rank).get("dataloader") or {}
    steps, wall_ms = series.total_steps(), float(series.rows["wall_ns"].sum()) / 1e6
    run, data_ms = Facts(view, rank), _fetching_ms(series)
    workers = loader.get("num_workers")
    if workers:
        least_ms, most_ms = _of_workers(restarts, loader, steps, data_ms)
    else:
        least_ms, most_ms = _of_order(view, rank, data_ms)
    building_ms = _at_lines_ms(view, rank, lines_of(loader))
    is_rebuilt = _at_lines_ms(view, rank, lines_of(loader)[:1]) > 0
    least_ms, most_ms = least_ms + building_ms, most_ms + building_ms
    if least_ms <= STARTING * wall_ms:
        return None
    begun = restarts.epochs + 1  # the first is no beginning anew
    every, won = max(1.0, steps / begun), most_ms / steps
    if workers:
        start_text = f"it starts {counted(workers, 'worker')}"
    else:
        start_text = "it makes an order of all samples"
    length = loader.get("dataset_length")
    if length and not workers:
        start_text += f" ({length:,})"
    persistent = ""
    if workers and not loader.get("persistent_workers"):
        persistent = ", with persistent_workers=True"
    runs_out = not is_rebuilt and _runs_out(series, loader, every)
    how_often = "at each step" if every < 1.5 else f"every {every:.0f} steps"
    return spec.make(
        severity="high" if least_ms > 0.25 * wall_ms else "medium",
        title=f"the loader is started anew {how_often}: {won:.1f} ms a step",
        evidence=f"{begun:,} iterators were made of the loader{loader_place(run)} in "
        f"{steps:,} steps, and each time {start_text}; beginning takes {won:.1f} of "
        f"{wall_ms / steps:.1f} ms a step",
        fix=_longer_epochs(run, persistent)
        if runs_out
        else Option(
            f"build the DataLoader{loader_place(run)} once, before the loop, and take all "
            f"batches from one iterator of it{persistent}",
            mend=ByRule("loader-in-loop") if workers else None,
        ),
        rank=everybody(view),
        site=loader_site(run)
        if is_rebuilt or (runs_out and persistent)
        else loader.get("loop") or loader_site(run),
        confidence=0.9,
        recoverable_ms_per_step=won,
        interval_ms_per_step=(least_ms / steps, won),
        proof=Proof(
            statistic="least time that beginning with an iterator takes / time of all steps",
            value=100 * least_ms / wall_ms,
            threshold=100 * STARTING,
            unit="%",
            formula="with workers: ending and making iterators and their first fetches, less the "
            "usual wait of other steps; without: data time x part of its stack samples in the "
            "sampler, least by its 95 % Wilson interval",
            inputs=(
                Input("iterators made", begun, "", f"loader events, rank {rank}"),
                Input("steps", steps, "", f"steps.n_steps, rank {rank}"),
                Input(
                    "ending and making them", restarts.starts_ms, "ms", "loader events, starts_ms"
                ),
                Input("first fetches", restarts.firsts_ms, "ms", "loader events, firsts_ms"),
                Input("data time", data_ms, "ms", "steps.data_ns"),
            ),
        ),
    )


RUNS_OUT = 0.8
"""Part of a loader's batches that were taken before it was begun anew: it had come to its end."""


def _runs_out(series: RankSeries, loader: LoaderInUse, every: float) -> bool:
    """Whether the loader is begun anew since its few batches are used up."""
    of_a_step = float(series.rows["micro_batches"].sum()) / max(1, series.total_steps())
    return 0 < (loader.get("length") or 0) * RUNS_OUT <= every * max(1.0, of_a_step)


def _longer_epochs(run: Facts, persistent: str) -> Option:
    """Of a loader that is built once and comes to its end after a few batches."""
    longer = f"make epochs longer at the DataLoader{loader_place(run)}: a data set or sampler that "
    longer += "repeats the samples"
    if persistent:
        return Option(f"keep the workers over epochs{persistent}; or {longer}")
    return Option(longer)


def started_anew(view: RunView) -> Looks | None:
    """What was seen of the first rank's loader, where it is begun with every few steps."""
    loader_looks = looks(view).get(view.ranks[0]) if view.ranks else None
    if loader_looks is None or loader_looks.epochs < ENOUGH_STARTS:
        return None
    if view.per_rank[loader_looks.rank].total_steps() < FEW_STEPS * loader_looks.epochs:
        return loader_looks
    return None


def _of_workers(
    looks: Looks, loader: LoaderInUse, steps: int, data_ms: float
) -> tuple[float, float]:
    """Starts, at least and at most, ms: a first fetch also waits as any other would."""
    other_steps = steps - looks.epochs
    rest_ms = max(0.0, data_ms - looks.starts_ms - looks.firsts_ms)
    usual_ms = rest_ms / other_steps if other_steps > OTHERS * steps else 0.0
    first_ms = max(0.0, looks.firsts_ms - looks.epochs * usual_ms)
    if loader.get("persistent_workers"):
        return looks.starts_ms, looks.starts_ms
    return looks.starts_ms + 0.5 * first_ms, looks.starts_ms + first_ms


def lines_of(loader: LoaderInUse) -> tuple[str, ...]:
    """``file:line`` of a loader's building, and of its loop unless that is a trainer's."""
    names = ("site",) if loader.get("inside") else ("site", "loop")
    return tuple(str(loader[name]) for name in names if loader.get(name))


def _fetching_ms(series: RankSeries) -> float:
    """Milliseconds of fetching, the garbage collector's part left out: a sample that fell into it
    is seen where the interpreter goes on.
    """
    rows = series.rows
    return float(np.maximum(rows["data_ns"] - rows["gc_ns"], 0).sum()) / 1e6


def _at_lines_ms(view: RunView, rank: int, lines: Sequence[str]) -> float:
    """What a loader's lines take outside fetches: building it, ending a dropped one's workers."""
    at_line, samples = samples_where(
        view, "other", rank, lambda sample: sample.get("site") in lines
    )
    other_ms = float(view.per_rank[rank].rows["other_ns"].sum()) / 1e6
    return other_ms * at_line / samples if samples >= ENOUGH_STARTS else 0.0


def _of_order(view: RunView, rank: int, data_ms: float) -> tuple[float, float]:
    """The same of a loader without workers: what its sampler takes of the data time."""
    in_sampler, samples = samples_where(
        view, "data", rank, lambda sample: str(sample.get("inside") or "").startswith(_SHUFFLING)
    )
    if samples < ENOUGH_STARTS:
        return 0.0, 0.0
    return data_ms * surely(in_sampler, samples), data_ms * in_sampler / samples
