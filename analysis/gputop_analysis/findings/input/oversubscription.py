"""More is ready to run than there are cores."""

from __future__ import annotations

from typing import NamedTuple

from gputop_agent.contracts import LoaderInUse
from gputop_analysis.findings.advice import MovedSetting, Option
from gputop_analysis.findings.cores import BUSY_CORES, Usage, neighbours, usage
from gputop_analysis.findings.dialect import loader_change, loader_place
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.host.gil_events import busiest, cores_used
from gputop_analysis.findings.input.faster_batches import cheaper, made_by_dataset
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import CPU_SHARE, phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import Queue, crowded, queued_share, run_queue
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.series import RankSeries
from gputop_analysis.stats import Interval
from gputop_analysis.text import counted, percent, whole_percent
from gputop_analysis.view import RunView

OWN_THREAD = 0.15
"""Of a core, from which a Python thread beside the training is asked to take less."""
FILLED = 0.8
"""Of the cores, used by the run itself: then it is in its own way."""
QUEUED = 0.05
"""Share of the time that the training thread waits for a core."""


@finding(
    id="IN04",
    name="CPU oversubscription",
    family="input",
    cause="host",
    trigger=f"the training thread is ready but waits for a core for more than {percent(QUEUED)} "
    "of the time; medium above 20 % where cores are scarce",
    fix="fewer of what takes the cores: ranks, torch threads, workers, or programs outside the run",
    no_use=(
        "fewer workers or threads: where they use no core to speak of; where other cores are idle; "
        "where fewer workers would not keep up"
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
    rank = max(waits, key=lambda rank: waits[rank].value)
    queue = waits[rank]
    wait = queue.share
    if wait.low <= QUEUED:
        return None
    wall_ms = _step_ms(view.per_rank[rank])
    other_waits = [other.value for r, other in waits.items() if r != rank]
    run, scarce = Facts(view, rank), crowded(view, rank)
    used = usage(view, view.host_of(rank))
    alone = all(other < 0.5 * wait.value for other in other_waits)
    overall, on_rank = whole_percent(queued_share(view, view.ranks)), whole_percent(wait.value)
    title = f"{overall} of the time is spent waiting for a core"
    if other_waits and on_rank != overall:
        title += f", {on_rank} on rank {rank}"  # what the fix wins is of that one
    if alone and other_waits:
        title = f"rank {rank} spends {on_rank} of its time waiting for a core"
    waits_most = f"rank {rank}, which waits most: " if other_waits else ""
    in_use = _who(view, used, view.host_of(rank)) if used else ""
    demands = _demands(view, run, used, wait.value) if scarce else [_Demand(0.0, _apart(run))]
    return spec.make(
        severity=_severity(wait, scarce),
        title=title,
        evidence=f"{waits_most}run-queue wait {wait.value * 100:.0f} % of {queue.seconds:.0f} s "
        f"(95 % interval {wait.low * 100:.0f} to {wait.high * 100:.0f} %), "
        f"{run.cores or 'unknown'} cores, {counted(run.ranks_here, 'rank')} on this machine, "
        f"torch threads a rank: {run.threads or 'unknown'}, {_workers(run.loader)}{in_use}"
        + ("" if scarce else "; other cores are idle meanwhile"),
        fix=[demand.less for demand in demands],
        rank=rank if alone else None,
        site=demands[0].site,
        recoverable_ms_per_step=wait.value * wall_ms,
        interval_ms_per_step=(wait.low * wall_ms, wait.high * wall_ms),
        proof=_queue_proof(rank, queue, wall_ms),
    )


def _step_ms(series: RankSeries) -> float:
    """Mean wall time of the steady steps."""
    wall_ns = series.rows["wall_ns"][series.steady].sum()
    return float(wall_ns / 1e6 / max(series.n_steps[series.steady].sum(), 1))


def _severity(wait: Interval, scarce: bool) -> Severity:
    if wait.low <= 0.20 or not scarce:
        return "info"
    return "high" if wait.low > 0.40 else "medium"


def _queue_proof(rank: int, queue: Queue, wall_ms: float) -> Proof:
    return Proof(
        statistic="lower end of the 95 % bootstrap interval of run-queue wait / time",
        value=100 * queue.share.low,
        threshold=100 * QUEUED,
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


class _Demand(NamedTuple):
    """What takes cores, how many, and how to make it take less."""

    cores: float
    less: Option
    site: str | None = None
    """The line that takes them, where it is known."""


def _demands(view: RunView, run: Facts, used: Usage | None, queued: float) -> list[_Demand]:
    """What takes the cores, the most first; what uses none is not asked to use less."""
    candidates = [
        _demand_of_threads(run),
        _demand_of_workers(run, used, queued),
        _demand_of_own_thread(view, run.rank),
        _demand_of_others(run, used),
    ]
    demands = [demand for demand in candidates if demand is not None]
    if not demands:
        return [_Demand(0.0, Option(_without_a_cause(run, used)))]
    return sorted(demands, key=lambda demand: demand.cores, reverse=True)


def _without_a_cause(run: Facts, used: Usage | None) -> str:
    """What is left to do where nothing takes more than it should."""
    own = used.own if used is not None else 0.0
    if run.cores and own > FILLED * run.cores:
        return (
            f"nothing but more cores helps: what the run itself does uses {own:.1f} of "
            f"{run.cores}, and its ranks, their threads and workers are not more than these"
        )
    return (
        "something uses the cores for moments: see `top`; pin this run to cores of its own "
        "with `taskset`"
    )


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


def _demand_of_own_thread(view: RunView, rank: int) -> _Demand | None:
    """A Python thread that the script has started beside the training."""
    events = list(view.events("threads", rank=rank))
    busy_ms = sum(cores_used(event) * float(event.get("period_ms") or 0) for event in events)
    cores = busy_ms * 1e6 / max(float(view.per_rank[rank].rows["wall_ns"].sum()), 1.0)
    if cores < OWN_THREAD:
        return None
    name, site = busiest(events)
    words = (
        f"let the run's own thread {name} wait between its looks, as by time.sleep(), or leave it "
        f"out: it uses {cores:.1f} of a core"
    )
    return _Demand(cores, Option(words, lever=MovedSetting("own threads", -1)), site)


def _demand_of_workers(run: Facts, used: Usage | None, queued: float) -> _Demand | None:
    """Workers of the loaders that are as many as the cores, and busy as far as that is known.

    Fewer of them have the same batches to make: they help where they still make one in the time
    of a step that waits for no core.
    """
    workers, cores = run.loader.get("num_workers"), run.cores
    if not cores or not isinstance(workers, int) or workers * run.ranks_here < cores:
        return None
    fewer = max(1, cores // run.ranks_here - 1)
    is_idle = used is not None and used.workers < BUSY_CORES
    if is_idle or fewer >= workers:
        return None
    if used is not None and used.workers / run.ranks_here / fewer > 1.0 - queued:
        words = (
            f"{cheaper(run)} (the loader{loader_place(run)}): its workers use "
            f"{used.workers:.1f} of {cores} cores, and fewer of them would be too slow"
        )
        return _Demand(used.workers, Option(words), site=made_by_dataset(run))
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
    by_whom = f"most of them by {names}" if names else "see `top`"
    if names and sum(cores for _, cores in busiest) <= used.foreign / 2:
        by_whom = ", ".join(f"{name} {cores:.1f}" for name, cores in busiest) + " of them"
    words = (
        f"end what runs beside this ({used.foreign:.1f} cores, {by_whom}), move this run, or "
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


def _workers(loader: LoaderInUse) -> str:
    if "num_workers" in loader:
        return f"num_workers={loader['num_workers']}"
    return "no DataLoader"
