"""Input pipeline: does the training wait for its batches, and why?"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gputop_agent.contracts import LoaderInUse
from gputop_analysis.findings.advice import FREE_CORES, MAP_STYLE, NOWHERE, MovedSetting, Option
from gputop_analysis.findings.cores import (
    BUSY_CORES,
    HANDOVER_MS,
    Usage,
    computing_threads,
    foreign_cores,
    neighbours,
    own_cores,
    usage,
    won_by_workers,
)
from gputop_analysis.findings.dialect import loader_change, loader_place, loader_site, takes
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.input.loader_looks import (
    ENOUGH_LOOKS,
    epoch_starts,
    looks,
    surely,
    workers,
)
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import CPU_SHARE, phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import (
    Queue,
    Share,
    crowded,
    device_share,
    everybody,
    on_device,
    queued_share,
    run_queue,
    share_over,
    some_ranks,
    typical,
    without_queueing,
)
from gputop_analysis.findings.sites import named, top_site, trainers_call
from gputop_analysis.mend import DATA_LOADER, ByArguments
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.text import counted, percent
from gputop_analysis.view import RunView, once_per_view

QUEUE_READ_MS = 3.0
"""Taking a ready batch from a worker's queue costs the training 1 to 3 ms (unpickling, shared
memory): no more workers change that.
"""

WAITING = 0.1
"""Share of the step that waits for data: the input bounds the run."""
WAITING_SOME = 0.05
"""The same where the cause is known: batches made or unpacked by the training process."""
QUEUED = 0.05
"""Share of the time that the training thread waits for a core."""
STARVED = 0.10
"""Where the training waits so much for a core, workers starve too: more make it worse (IN04)."""

MOST_OF_IT = 0.25
"""Of the step: so much waiting for data is more than workers that starve can make of it."""


@once_per_view
def data_wait(view: RunView) -> Share | None:
    """Waiting for batches on the typical rank; on a device's clock it is the gap in which the
    device idles.

    Without the steps in which an epoch begins: workers that start have their own finding (IN05).
    """
    return typical(
        device_share(view, rank, "data") or _fetch_wait(view, rank) for rank in some_ranks(view)
    )


def _fetch_wait(view: RunView, rank: int) -> Share | None:
    series, starts = view.per_rank[rank], epoch_starts(view).get(rank)
    mask = series.steady
    if starts is not None and (view.hello(rank).get("dataloader") or {}).get("num_workers"):
        upto, before = (
            np.searchsorted(starts[0], series.steps - n, "right") for n in (0, series.n_steps)
        )
        mask = mask & (upto == before)
    return share_over(series, mask, lambda rows: rows["data_ns"])


def wait_source(wait: Share) -> str:
    """The column that a data wait was read from."""
    return "device.data_ms" if wait.clock == "device" else "steps.data_ns"


@finding(
    id="IN01",
    name="input-bound",
    family="input",
    cause="input",
    trigger=f"data wait above {percent(WAITING)} of the step (lower end of the 95 % interval); "
    f"high above 25 %, info below {QUEUE_READ_MS:.0f} ms",
    fix="more DataLoader workers with prefetching, a cheaper transform, or data that is "
    "prepared beforehand",
    no_use=(
        "more workers: where the cores are taken already, they share what there is; below "
        "3 ms a batch"
    ),
    reads="steps.data_ns, on a GPU device.data_ms; hello.dataloader",
    silent=(
        "fewer than 20 steady steps; less than 1 ms a batch; workers that starve "
        "for cores (IN04 speaks then)"
    ),
    traps="a wait that overlaps the GPU's work: judged on the device's clock where there is one",
    seen_on=CPU,
    explained_by=STRAGGLERS,
)
def input_bound(view: RunView, spec: Spec) -> Finding | None:
    """Steps wait for data."""
    wait = data_wait(view)
    if wait is None or not wait.surely_above(WAITING) or per_batch_ms(view, wait) < HANDOVER_MS:
        return None
    run = Facts(view, wait.rank)
    count = run.loader.get("num_workers")
    queue = run_queue(view, wait.rank)
    if count and queue and queue.share.low > STARVED and not _late_in_any_case(view, wait, queue):
        return None
    if count:
        handed_over_ms = wait.mean_ms
    else:
        handed_over_ms = without_queueing(view, wait.rank, per_batch_ms(view, wait))
    severity, loader = severity_of(wait), ""
    if count is not None:
        loader = f"; the loader{loader_place(run)} has num_workers={count}"
        if handed_over_ms < QUEUE_READ_MS:
            severity = "info"
    return spec.make(
        severity=severity,
        title=f"data wait takes {wait.share.value * 100:.0f} % of each step, {wait.ms.value:.1f} "
        "ms",
        evidence=f"{wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step wait for the next batch: "
        f"{wait.percent}, {wait.clock} clock, {wait.steps:,} steady steps{loader}",
        fix=faster_batches(run, wait),
        rank=everybody(view),
        site=loader_site(run),
        confidence=0.6 if on_device(view, wait.rank) and wait.clock == "host" else 0.95,
        recoverable_ms_per_step=wait.ms.value,
        interval_ms_per_step=(wait.ms.low, wait.ms.high),
        proof=wait.proof("data wait", WAITING, wait_source(wait)),
    )


def _workers(loader: LoaderInUse) -> str:
    if "num_workers" in loader:
        return f"num_workers={loader['num_workers']}"
    return "no DataLoader"


def _late_in_any_case(view: RunView, wait: Share, queue: Queue) -> bool:
    """Whether batches would be late with cores for all too: what is left of the wait without the
    workers' queueing.

    Less of it is asked for where looks at the loader say that no batch is ready at most fetches.
    """
    loader_looks, crew = looks(view).get(wait.rank), workers(view).get(wait.rank)
    late_share = wait.share.low * (1 - (crew.queued if crew else queue.value))
    if loader_looks is None or loader_looks.looks < ENOUGH_LOOKS:
        return late_share > MOST_OF_IT
    waiting = loader_looks.fetching - loader_looks.unpacking
    if waiting < loader_looks.unpacking:
        return False  # batches are there: the training itself wants a core to unpack them
    empty = (
        surely(loader_looks.empty, loader_looks.looks) > 0.5
        and surely(waiting, loader_looks.looks) > 0.5
    )
    return late_share > (0.10 if empty else MOST_OF_IT)


@finding(
    id="IN02",
    name="single-process loader",
    family="input",
    cause="input",
    trigger=f"num_workers=0 and data wait above {percent(WAITING_SOME)} of the step (lower end "
    f"of the 95 % interval); info below {QUEUE_READ_MS:.0f} ms a batch, which a worker takes to "
    "hand one over, unless it is above 2 ms and 40 % of the step",
    fix="num_workers above 0: batches are then made while the model trains",
    explains=("IN01",),
    no_use=(
        "workers: where no core is left for one, or a batch takes less than 3 ms; a batch "
        "sampler: with an IterableDataset, or where a trainer builds the loader"
    ),
    reads="steps.data_ns, hello.dataloader.num_workers and its site",
    silent=(
        "fewer than 20 steady steps; the loader is not torch's; less than 1 ms a batch, waiting "
        "for a core not counted"
    ),
    traps="data already in memory: below 3 ms a batch a worker wins nothing, and it is an info",
    seen_on=CPU,
    explained_by=STRAGGLERS,
)
def single_process_loader(view: RunView, spec: Spec) -> Finding | None:
    """Batches are made by the training process itself, between steps."""
    wait = data_wait(view)
    if wait is None or not wait.surely_above(WAITING_SOME):
        return None
    making_ms = without_queueing(view, wait.rank, per_batch_ms(view, wait))
    if making_ms < HANDOVER_MS:
        return None
    run = Facts(view, wait.rank)
    if run.loader.get("num_workers") != 0:
        return None
    wanted = workers_needed(view, wait)
    won = won_by_workers(view, wait, 0, wanted)
    making = top_site(view, "data", rank=wait.rank)
    return spec.make(
        severity=_severity_alone(wait, making_ms),
        title=f"{wait.share.value * 100:.0f} % of each step, {wait.ms.value:.1f} ms, makes the "
        "next batch: num_workers=0",
        evidence=f"the loader{loader_place(run)} has num_workers=0, so the training makes each "
        f"batch itself: {wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step, {wait.percent}, "
        f"{wait.clock} clock, {wait.steps:,} steady steps"
        + (f"; {making.words}" if making is not None and making.site else ""),
        fix=faster_batches(run, wait) if making_ms >= QUEUE_READ_MS else _whole_batches(run),
        rank=everybody(view),
        site=loader_site(run) or named(making) or trainers_call(view, wait.rank),
        recoverable_ms_per_step=wait.mean_ms,
        interval_ms_per_step=(wait.ms.low, wait.ms.high),
        proof=wait.proof(
            "data wait",
            WAITING_SOME,
            wait_source(wait),
            f"recoverable = step - max(rest of the step, data / {wanted} workers, CPU time of a "
            f"step / cores) - {HANDOVER_MS:.0f} ms for the handing over = {won:.3f} ms per step "
            "by workers",
            Input("rest of the step", wait.wall_ms - wait.mean_ms, "ms", "step time - data wait"),
            Input("cores", view.cores(wait.rank), "", "host.json cpu_count; 0: not known"),
            Input(
                "cores for this rank",
                _cores_said(view, wait.rank, wanted),
                "",
                "shared with all that wants them",
            ),
        ),
    )


LARGE_PART, LARGE_MS = 0.40, 2.0
"""Of a step, and a batch: making them is worth a look also where a worker would not win it back."""


def _severity_alone(wait: Share, making_ms: float) -> Severity:
    if making_ms >= QUEUE_READ_MS:
        return severity_of(wait)
    if wait.share.low > LARGE_PART and making_ms >= LARGE_MS:
        return "medium"
    return "info"


def _cores_said(view: RunView, rank: int, worker_count: int) -> float | str:
    cores = own_cores(view, rank, (computing_threads(view, rank) or 1) + worker_count)
    return "not known" if cores is None else cores


def _whole_batches(run: Facts) -> tuple[Option, ...]:
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


def per_batch_ms(view: RunView, wait: Share) -> float:
    """Waiting for one batch: with gradient accumulation a step takes several.

    Backward passes are counted where the size of a batch is not known; a GAN makes several for one
    batch.
    """
    series = view.per_rank[wait.rank]
    steps = max(int(series.n_steps[series.steady].sum()), 1)
    batches = float(series.rows["micro_batches"][series.steady].sum()) / steps
    samples = float(series.rows["samples"][series.steady].sum()) / steps
    size = (view.hello(wait.rank).get("dataloader") or {}).get("batch_size")
    if isinstance(size, int) and size > 0 and samples > 0:
        batches = min(batches, samples / size)
    return wait.mean_ms / max(1.0, batches)


def workers_needed(view: RunView, wait: Share) -> int:
    """Workers to make a batch in the rest of a step's time, at most a rank's cores."""
    rest_ms = max(wait.wall_ms - wait.ms.value, 1e-3)
    wanted = max(2, math.ceil(1.25 * wait.ms.value / rest_ms))
    return min(wanted, _most_workers(Facts(view, wait.rank)))


def _most_workers(run: Facts) -> int:
    """As many as a rank has cores; 16 where they are not known."""
    return max(1, run.cores // run.ranks_here) if run.cores else 16


def severity_of(wait: Share) -> Severity:
    if wait.share.low > MOST_OF_IT:
        return "high"
    if wait.share.low > 0.10:
        return "medium"
    return "info"


CHEAPER = "make what the dataset and its transforms do for a batch cheaper, or store it prepared"
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
        return _if_won(words, won, wait), Option(CHEAPER, promises=False, last=True)
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
        return CHEAPER + setting_text
    foreign = foreign_cores(run.view, run.view.host_of(run.rank))
    if foreign >= BUSY_CORES:
        taken = f", {foreign:.1f} of {run.cores} are taken by other programs"
    elif _worth(won_by_workers(run.view, wait, now, then, threads=1), wait):
        return (
            f"{CHEAPER}; or {then} workers and fewer of torch's {run.threads} threads "
            f"(OMP_NUM_THREADS={max(1, run.cores - then)}): these have the {run.cores} cores in "
            f"use, and how much of that waits in a loop for the next operator is not known"
            f"{setting_text}"
        )
    else:
        taken = ""
    return f"{CHEAPER}; more workers would find no free core{taken}{setting_text}"


@finding(
    id="IN04",
    name="CPU oversubscription",
    family="input",
    cause="host",
    trigger=f"the training thread is ready but waits for a core for more than {percent(QUEUED)} "
    "of the time; medium above 20 % where cores are scarce",
    fix="fewer of what takes the cores: ranks, torch threads, workers, or programs outside the run",
    no_use=(
        "fewer workers or threads: where they use no core to speak of; where other cores are idle"
    ),
    reads=(
        "process.run_wait_ns_total of the training thread (schedstat), hello.threads, "
        "hello.dataloader"
    ),
    silent="less than 1 s or 3 samples; a kernel without schedstat; cores that are mostly free",
    traps="short bursts of other programs",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(
        CPU_SHARE,
        phases("forward", "backward"),
    ),
)
def cpu_oversubscription(view: RunView, spec: Spec) -> Finding | None:
    """More is ready to run than there are cores."""
    waits = {rank: queue for rank in view.ranks if (queue := run_queue(view, rank))}
    if not waits:
        return None
    rank = max(waits, key=lambda one: waits[one].value)
    wait, seconds = waits[rank].share, waits[rank].seconds
    if wait.low <= QUEUED:
        return None
    series = view.per_rank[rank]
    wall_ms = float(
        series.rows["wall_ns"][series.steady].sum()
        / 1e6
        / max(series.n_steps[series.steady].sum(), 1)
    )
    other_waits = [queue.value for r, queue in waits.items() if r != rank]
    run, scarce = Facts(view, rank), crowded(view, rank)
    used = usage(view, view.host_of(rank))
    if wait.low <= 0.20 or not scarce:
        severity = "info"
    elif wait.low > 0.40:
        severity = "high"
    else:
        severity = "medium"
    alone = all(other < 0.5 * wait.value for other in other_waits)
    waited = queued_share(view, view.ranks)
    title = f"{waited * 100:.0f} % of the time is spent waiting for a core"
    if waited < wait.value:
        title += f", {wait.value * 100:.0f} % on rank {rank}"  # what the fix wins is of that one
    if alone and other_waits:
        title = f"rank {rank} spends {wait.value * 100:.0f} % of its time waiting for a core"
    most = f"rank {rank}, which waits most: " if other_waits else ""
    return spec.make(
        severity=severity,
        title=title,
        evidence=f"{most}run-queue wait {wait.value * 100:.0f} % of {seconds:.0f} s (95 % interval "
        f"{wait.low * 100:.0f} to {wait.high * 100:.0f} %), {run.cores or 'unknown'} cores, "
        f"{counted(run.ranks_here, 'rank')} on this machine, torch threads a rank: "
        f"{run.threads or 'unknown'}, {_workers(run.loader)}"
        + (_who(view, used, view.host_of(rank)) if used else "")
        + ("" if scarce else "; other cores are idle meanwhile"),
        fix=_less_demand(run, used) if scarce else (_apart(run),),
        rank=rank if alone else None,
        recoverable_ms_per_step=wait.value * wall_ms,
        interval_ms_per_step=(wait.low * wall_ms, wait.high * wall_ms),
        proof=_queue_proof(rank, waits[rank], wall_ms),
    )


def _queue_proof(rank: int, queue: Queue, wall_ms: float) -> Proof:
    return Proof(
        statistic="lower end of the 95 % bootstrap interval of run-queue wait / time",
        value=100 * queue.share.low,
        threshold=5.0,
        unit="%",
        formula=f"recoverable = {100 * queue.share.value:.1f} % x step time = "
        f"{queue.share.value * wall_ms:.3f} ms per step",
        inputs=(
            Input(
                "run-queue wait",
                100 * queue.share.value,
                "%",
                f"process.run_wait_ns_total, rank {rank}",
            ),
            Input(
                "sampled for", queue.seconds, "s", f"process.t_ns, rank {rank}, after the warm-up"
            ),
            Input("step time", wall_ms, "ms", f"steps.wall_ns, rank {rank}, steady steps"),
        ),
    )


def _who(view: RunView, used: Usage, host: str) -> str:
    """Whose processes use the cores, by what was sampled."""
    parts = [f"training {used.ranks:.1f}"]
    if used.workers >= 0.05:
        parts.append(f"its loaders' workers {used.workers:.1f}")
    names = ", ".join(f"{name} {cores:.1f}" for name, cores in neighbours(view, host))
    parts.append(f"programs outside the run {used.foreign:.1f}" + (f" ({names})" if names else ""))
    return f"; cores in use: {', '.join(parts)}"


def _less_demand(run: Facts, used: Usage | None) -> list[Option]:
    """What takes the cores, the most first; what uses none is not asked to use less."""
    demands = [_demand_of_threads(run), _demand_of_workers(run, used), _demand_of_others(run, used)]
    known = [demand for demand in demands if demand is not None]
    if not known:
        return [
            Option(
                "something uses the cores for moments: see `top`; pin this run to cores of its "
                "own with `taskset`"
            )
        ]
    known.sort(key=lambda demand: demand.cores, reverse=True)
    return [demand.less for demand in known]


class _Demand(NamedTuple):
    """What takes cores, how many, and how to make it take less."""

    cores: float
    less: Option


def _demand_of_threads(run: Facts) -> _Demand | None:
    """Ranks, or else their threads, that are more than the cores."""
    threads, ranks, cores = run.threads or 1, run.ranks_here, run.cores
    if cores and ranks > cores:
        words = f"start fewer ranks here: {ranks} ranks share {cores} cores"
        return _Demand(float(ranks), Option(words, lever=MovedSetting("ranks", -1)))
    lever = MovedSetting("torch threads", -1)
    if cores and threads * ranks > cores:
        fewer = max(1, cores // ranks)
        shared = f"{ranks} ranks of {threads} threads share {cores} cores"
        words = f"set OMP_NUM_THREADS={fewer} ({shared})"
        return _Demand(float(threads * ranks), Option(words, lever=lever))
    if threads > 1:
        words = "set OMP_NUM_THREADS=1: torch's threads wait for the slowest of them"
        return _Demand(0.0, Option(words, lever=lever))
    return None


def _demand_of_workers(run: Facts, used: Usage | None) -> _Demand | None:
    """Workers of the loaders that are as many as the cores, and busy as far as that is known."""
    workers, cores = run.loader.get("num_workers"), run.cores
    if not cores or not isinstance(workers, int) or workers * run.ranks_here < cores:
        return None
    fewer = max(1, cores // run.ranks_here - 1)
    is_idle = used is not None and used.workers < BUSY_CORES
    if is_idle or fewer >= workers:
        return None
    words = (
        f"lower num_workers from {workers} to {fewer} ({cores} cores for "
        f"{counted(run.ranks_here, 'rank')}): {loader_change(run, num_workers=fewer)}"
    )
    busy_cores = used.workers if used is not None else 1.0
    return _Demand(busy_cores, Option(words, lever=MovedSetting("num_workers", -1)))


def _demand_of_others(run: Facts, used: Usage | None) -> _Demand | None:
    """Programs outside the run."""
    if used is None or used.foreign < BUSY_CORES:
        return None
    busiest = neighbours(run.view, run.view.host_of(run.rank))[:2]
    names = " and ".join(name for name, _ in busiest)
    most = f"most of them by {names}" if names else "see `top`"
    if names and sum(cores for _, cores in busiest) <= used.foreign / 2:
        most = ", ".join(f"{name} {cores:.1f}" for name, cores in busiest) + " of them"
    words = (
        f"end what runs beside this ({used.foreign:.1f} cores, {most}), move this run, or "
        "give it cores of its own with `taskset`"
    )
    return _Demand(used.foreign, Option(words))


def _apart(run: Facts) -> Option:
    if run.threads == 1:
        words = (
            "two processes share a core while others are free: give each its own cores "
            "with `taskset` or `numactl`"
        )
    else:
        thread_count = run.threads or "unknown"
        words = (
            "threads share a core while others are free: try OMP_NUM_THREADS=1 (now "
            f"{thread_count}) or OMP_PROC_BIND=true"
        )
    return Option(words)
