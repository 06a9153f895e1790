"""The interpreter's lock: another Python thread of the training process holds up the training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.findings.host.gil_events import busiest, cores_used, spent, within, without
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import CPU_SHARE, phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import ENOUGH_RECORDS, ENOUGH_STEPS, Share, crowded, on_device
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import RankSeries
from gputop_analysis.stats import weighted_quantile
from gputop_analysis.view import Array, RunView

BUSY = 0.3
"""Of a core, used by other Python threads: below it they cannot hold the lock for long."""
COMPUTING = 0.8
"""CPU share of a thread that nobody holds up; with a busy rival 0.05 to 0.4 was measured."""
ENOUGH_ALONE = 5
"""Records of a time without a busy thread."""
SAME_WORK = 0.05
SWITCH_MS = 15.0
"""A thread asks for the lock every 5 ms; longer pauses are waits for something else."""


MANY_SWITCHES = 5.0
"""Voluntary switches a step of a thread that nobody holds up; a worker's queue costs 1 to 3."""


@dataclass(frozen=True)
class Contention:
    """What a rank loses to the lock."""

    lost: Share
    """Over the steps during which another Python thread is busy."""
    part: float
    """Of all steady steps, how many those are, 0 to 1."""
    busy: float
    """Cores that other Python threads use."""
    switches: float
    """Voluntary switches a step while they are busy."""
    name: str
    site: str | None
    alone_ms: float | None
    """Step time while no other thread is busy; None for too few steps: CPU time tells."""


@finding(
    id="HO04",
    name="GIL contention",
    family="host",
    cause="host",
    explains=("HO03", "HO06", "HO11", "IN01", "IN02", "IN04", "CE11"),
    trigger="another Python thread uses a third of a core; meanwhile the training thread is "
    "off the CPU, without being queued for one, for over 5 % of the step, in pauses "
    "as short as the lock's (one a step or more)",
    fix="move the work of the other thread into a process",
    no_use="where the other thread waits and computes nothing",
    reads=(
        "steps.wall_ns with and without the busy thread (threads events), else "
        "steps.compute_cpu_ns against wall time; voluntary switches"
    ),
    silent=(
        "fewer than 20 steady steps; no samples of the training thread; too few "
        "cores for its threads"
    ),
    traps="a hook that really waits for a file or a socket",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(
        CPU_SHARE,
        phases("forward", "backward"),
    ),
)
def gil_contention(view: RunView, spec: Spec) -> Finding | None:
    """Another Python thread holds the interpreter's lock. Not judged where a device computes."""
    rivalled = {event.get("rank") for event in view.events("threads")}
    contentions = [
        contention
        for rank in view.ranks
        if rank in rivalled and (contention := _contention(view, rank))
    ]
    worst = max(contentions, key=lambda contention: contention.lost.mean_ms, default=None)
    if worst is None:
        return None
    lost, part = worst.lost, worst.part
    when = "" if part > 0.95 else f"in {part * 100:.0f} % of the steps "
    title = f"another Python thread holds the GIL for {lost.share.value * 100:.0f} % of each step"
    thread = f"thread {worst.name}"
    if worst.site:
        title += f": {worst.site}"
        thread += f" at {worst.site}"
    without_it = "so long it was off the CPU"
    if worst.alone_ms:
        without_it = f"without them a step took {worst.alone_ms:.1f} ms"
    return spec.make(
        severity="high" if lost.share.low > 0.25 else "medium",
        title=title,
        evidence=f"{when}the training thread loses {lost.ms.value:.1f} ms of {lost.wall_ms:.1f} "
        f"ms a step ({worst.switches:.1f} voluntary switches a step), while {thread} and other "
        f"Python threads of the process use {worst.busy * 100:.0f} % of a core; {without_it}",
        fix=f"move the work of {thread} into a process (multiprocessing), or into code that "
        "releases the GIL",
        rank=lost.rank,
        site=worst.site,
        recoverable_ms_per_step=part * lost.ms.value,
        interval_ms_per_step=(max(0.0, part * lost.ms.low), max(0.0, part * lost.ms.high)),
        proof=_proof(worst),
    )


def _proof(contention: Contention) -> Proof:
    if contention.alone_ms:
        source = "steps.wall_ns"
        lost = "step time - median step time while no other thread is busy"
    else:
        source = "steps.compute_cpu_ns, cpu_ns, process.run_wait_ns_total"
        lost = (
            "time off the CPU in forward, backward and optimizer - waiting for a core that "
            "there is anyway"
        )
    return contention.lost.proof(
        "time lost to the lock",
        0.05,
        source,
        f"recoverable = {contention.part:.2f} (steps with a busy thread / all) x mean({lost})",
        Input(
            "step time without a busy thread",
            contention.alone_ms or "not seen",
            "ms",
            "steps.wall_ns, median",
        ),
        Input("other Python threads", 100 * contention.busy, "% of a core", "threads events"),
        Input(
            "voluntary switches per step",
            contention.switches,
            "",
            "process.voluntary_switches_total, judged against 1",
        ),
    )


def _contention(view: RunView, rank: int) -> Contention | None:
    """None where there is no busy Python thread, signals are missing, or little is lost."""
    series, samples = view.per_rank[rank], view.rank_processes.get(rank)
    looks = list(view.events("threads", rank=rank))
    rivals = [look for look in looks if cores_used(look) > BUSY]
    if not rivals or samples is None or on_device(view, rank):
        return None
    rows, counts = series.steady_rows, series.n_steps[series.steady]
    measured = rows["compute_cpu_ns"] >= 0  # not of steps that were only counted
    rows, counts = rows[measured], counts[measured]
    if len(rows) < ENOUGH_RECORDS or counts.sum() < ENOUGH_STEPS:
        return None
    samples = samples[samples["run_wait_ns_total"] >= 0]
    contended, alone = within(rows, rivals), without(rows, looks)
    if len(samples) < 3 or np.count_nonzero(contended) < ENOUGH_RECORDS:
        return None
    switches = spent(samples, "voluntary_switches_total", rows)
    queued = spent(samples, "run_wait_ns_total", rows)
    wait_ns = _comm_wait_ns(view, series) * counts
    computing = np.maximum(rows["forward_ns"] + rows["backward_ns"] - wait_ns, 1)
    using = float(rows["compute_cpu_ns"][contended].sum() / computing[contended].sum())
    lost_ns = _lost_ns(rows, computing)
    anyway_ns = _queued_anyway_ns(rows, queued, counts, alone, crowded(view, rank))

    def share(spent_ns: Array, mask: Array) -> Share:
        return Share(rank, spent_ns[mask] / 1e6, rows["wall_ns"][mask] / 1e6, counts[mask])

    blocked = share(np.maximum(lost_ns - queued, 0), contended)
    lost = share(np.maximum(lost_ns - anyway_ns, 0), contended)
    per_step = float(switches[contended].sum() / lost.steps)
    pause_ms = lost.mean_ms / max(per_step, 1e-9)
    if using >= COMPUTING or per_step <= 1 or pause_ms > SWITCH_MS:
        return None
    handed_over = _hands_over(view, rank, per_step) and lost.surely_above(0.10)
    if not handed_over and not blocked.surely_above(0.05):
        return None
    alone_ms = _alone_ms(rows, counts, contended, alone)
    if alone_ms is not None:
        # less than a third of a core costs something too
        contended = ~alone & within(rows, looks)
        lost = share(rows["wall_ns"] - 1e6 * alone_ms * counts, contended)
        if not lost.surely_above(0.0):
            return None
    busy = float(np.mean([cores_used(look) for look in rivals]))
    part = lost.steps / float(counts[contended | alone].sum())
    return Contention(lost, part, busy, per_step, *busiest(rivals), alone_ms)


def _alone_ms(rows: Array, counts: Array, contended: Array, alone: Array) -> float | None:
    """Median step time while no other thread is busy; None for too few such steps, or where they do
    other work.

    It tells more than CPU time does: threads that hand over the lock hundreds of times a step also
    compute more slowly.
    """
    if np.count_nonzero(alone) < ENOUGH_ALONE or counts[alone].sum() < ENOUGH_STEPS:
        return None
    for work in ("tokens", "samples", "micro_batches"):
        usual, now_ns = (
            float(rows[work][mask].sum() / counts[mask].sum()) for mask in (alone, contended)
        )
        if abs(now_ns - usual) > SAME_WORK * usual:
            return None
    return weighted_quantile(rows["wall_ns"][alone] / 1e6 / counts[alone], counts[alone], 0.5)


def _hands_over(view: RunView, rank: int, switches: float) -> bool:
    """Whether the thread gives up its core so often that only a lock explains it, though it is then
    queued for one.

    A single compute thread has nothing else to wait for; several of them wait for each other.
    """
    return switches >= MANY_SWITCHES and (view.hello(rank).get("threads") or {}).get("torch") == 1


def _lost_ns(rows: Array, computing: Array) -> Array:
    """Time off the CPU in each record where it should compute.

    Forward, backward and the optimizer have nothing to wait for. Elsewhere the user's code may
    sleep or read, so only as large a part counts as is lost in forward and backward.
    """
    idle = np.maximum(computing - rows["compute_cpu_ns"], 0)
    elsewhere = rows["data_ns"] + rows["optimizer_ns"] + rows["other_ns"]
    used = np.maximum(rows["cpu_ns"] - rows["compute_cpu_ns"], 0)
    idle_part = np.maximum(elsewhere - used, 0) / np.maximum(elsewhere, 1)
    own_ns = rows["data_ns"] + rows["other_ns"]
    lost = idle_part * rows["optimizer_ns"] + np.minimum(idle_part, idle / computing) * own_ns
    return idle + np.where(rows["cpu_ns"] >= 0, lost, 0)


def _queued_anyway_ns(
    rows: Array, queued: Array, counts: Array, alone: Array, is_crowded: bool
) -> Array:
    """Waiting for a core that has nothing to do with the other thread: as much a step as there is
    without it.

    Where it is always there: none if cores are free, for then the two share a core because of the
    lock, else as much as the training computes, which is what sharing its core with one other
    program costs.
    """
    if np.count_nonzero(alone) >= ENOUGH_RECORDS:
        return counts * float(queued[alone].sum() / counts[alone].sum())
    if is_crowded:
        return np.minimum(queued, rows["cpu_ns"])
    return np.zeros(len(rows))


def _comm_wait_ns(view: RunView, series: RankSeries) -> float:
    comm = view.comm(series.rank)
    return float(comm["wait_ns"].mean()) if len(comm) else 0.0
