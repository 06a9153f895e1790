"""Compute efficiency: steps take longer than at the beginning of the run, and go on doing so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.compute.climb import (
    COMPUTE,
    SLOWER,
    SLOWER_MS,
    climbing,
    samples_grew,
    short_of_cores,
    told_climb,
)
from gputop_analysis.findings.evenly import Evenly, spread_rows, work_of
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody, on_device, run_queue_share
from gputop_analysis.findings.site import named
from gputop_analysis.findings.sites import top_site
from gputop_analysis.findings.told import told_optimizers
from gputop_analysis.level import LevelChange, level_change
from gputop_analysis.model import Finding, Input, Proof, Since
from gputop_analysis.text import longer, percent
from gputop_analysis.view import Array, RunView

SLOWER_ON_CPU, SLOWER_BUSY = 0.5, 1.2
"""On a CPU, a program on the sibling of a core makes the same work take up to twice the CPU time,
without any queue: where most of the growth is CPU time, or that is not known, more is asked for, or
that one phase grows by itself.
"""
EARLIER_NS, LATER_NS = 1_000_000_000, 5_000_000_000
"""Around the change, the news of another optimizer: the agent looks for news now and then."""
OTHERS = 0.2
"""Part of the step that other phases must take to tell how far a neighbour slows all of it."""
LOOK_AT = 8
"""Ranks that are compared with their own beginning."""
WAITING = ("backward", "comm")
"""Where a rank waits for others, which is where theirs is seen."""


@dataclass(frozen=True)
class Regression:
    """Before and after the change, per step of equal work."""

    step: int
    change: LevelChange
    before_ms: float
    after_ms: float
    phase: str
    phase_ms: float
    """By how much that phase grew."""
    phase_alone_ms: float
    """By how much it grew beyond the factor by which the rest of the step did; 0 without one."""
    comm_ms: float
    """By how much collectives grew."""
    unit: str
    """What the step time is counted per: ``step``, or ``tokens``, ``samples`` if those changed."""
    records: int
    cpu_ms: float | None
    """By how much the training thread's CPU time grew; None where it was not measured."""
    since_ns: int
    """When the step of the change began, or a little later."""


@finding(
    id="CE11",
    name="step-time regression",
    family="compute",
    cause="compute",
    trigger="a lasting change of level of the log step time (CUSUM, 6 standard errors in view of "
    "its autocorrelation) by 15 % or more; on a CPU, where a busy neighbour costs CPU time, by "
    f"{percent(SLOWER_BUSY)}, or by {percent(SLOWER_ON_CPU)} in one phase alone; or one phase "
    "that climbs steadily (Mann-Kendall, beside a line better than beside a step) by 15 % of the "
    "step",
    fix="find what changed at that step: data, code path, clocks, another program",
    no_use="where the schedule asks for more work from that step on",
    reads="steps.wall_ns over the run, per token where tokens are counted",
    silent=(
        "sides shorter than five autocorrelation times; more tokens or samples a step, which "
        "are divided out; samples that grow in stages; growth that waiting for a core explains; "
        "computing on a CPU that slows by less than half; another optimizer that begins then"
    ),
    traps="a batch or sequence schedule",
    seen_on=CPU,
)
def step_time_regression(view: RunView, spec: Spec) -> Finding | None:
    """Compared with the run's own beginning. Ranks go in step: the first stands for all unless it
    only waits longer.
    """
    for rank in view.ranks[:LOOK_AT]:
        climb = climbing(view, rank)
        if climb is not None:
            return told_climb(view, spec, climb)
    slower = _slower_rank(view)
    if slower is None:
        return None
    rank, change = slower
    queued_ms = _queueing_grew(view, rank, change)  # which IN04 reports
    growth = _own_growth(view, rank, change, queued_ms)
    if growth.ms < max(growth.threshold * change.before_ms, SLOWER_MS):
        return None
    waits = change.phase in WAITING
    site = None
    if change.phase in ("data", "other", "eval"):
        site = top_site(view, change.phase, rank=rank, all_work=True)
    per = "" if change.unit == "step" else f" for the same number of {change.unit}"
    where = "" if waits or len(view.ranks) == 1 else f": rank {rank} in {change.phase}"
    relative = change.after_ms / change.before_ms - 1
    error_ms = 1.96 * change.change.error * change.after_ms
    return spec.make(
        severity="high" if relative > 0.5 else "medium",
        title=f"steps take {longer(relative)}{per} since step {change.step:,}{where}",
        evidence=f"{change.before_ms:.1f} ms before, {change.after_ms:.1f} ms after{per}; "
        f"{change.phase} grew by {change.phase_ms:.1f} ms; {change.change.score:.0f} standard "
        f"errors, autocorrelation time {change.change.tau:.1f} records",
        fix=f"look for what changed at step {change.step:,} in {change.phase}"
        f"{named(site, ' at {}')}"
        ": a schedule, a growing list, another kind of batch, another program on the machine",
        rank=everybody(view) if waits else rank,
        site=site.site if site else None,
        confidence=0.8,
        recoverable_ms_per_step=growth.ms,
        since=Since(change.step, change.after_ms),
        interval_ms_per_step=(max(0.0, growth.ms - error_ms), growth.ms + error_ms),
        proof=_proof(change, rank, growth.threshold, queued_ms),
    )


def _slower_rank(view: RunView) -> tuple[int, Regression] | None:
    """The first rank and its change; where that only waits longer, the first that does not."""
    if not view.ranks:
        return None
    first = view.ranks[0]
    change = regression(view, first)
    if change is None:
        return None
    if change.phase in WAITING:
        for rank in view.ranks[1:LOOK_AT]:
            other = regression(view, rank)
            if other is not None and other.phase not in WAITING:
                return rank, other
    return first, change


class _Growth(NamedTuple):
    """What a step takes longer, as far as the run itself is to blame, and the least share told."""

    ms: float
    threshold: float


def _own_growth(view: RunView, rank: int, change: Regression, queued_ms: float) -> _Growth:
    more_ms = change.after_ms - change.before_ms - queued_ms
    if change.phase not in WAITING:
        more_ms -= max(0.0, change.comm_ms)  # in which it waits for the other ranks' work
    if change.cpu_ms is not None and short_of_cores(view, rank):
        more_ms = min(more_ms, change.cpu_ms)  # times by the clock follow the machine's load
    if on_device(view, rank):
        return _Growth(more_ms, SLOWER)
    threshold = _least_on_cpu(change, more_ms)
    if threshold == SLOWER_BUSY and more_ms < threshold * change.before_ms:
        # in all phases a neighbour may be the cause; in one alone it hardly is
        return _Growth(min(more_ms, change.phase_alone_ms), SLOWER_ON_CPU)
    return _Growth(more_ms, threshold)


def _least_on_cpu(regression: Regression, more_ms: float) -> float:
    if regression.cpu_ms is None:
        return SLOWER_ON_CPU
    return SLOWER_BUSY if regression.cpu_ms > 0.5 * more_ms else SLOWER


def _queueing_grew(view: RunView, rank: int, regression: Regression) -> float:
    """Growth of the wait for a core, ms a step; in proportion where not sampled before."""
    ends = view.per_rank[rank].steady_ends_ns
    after = run_queue_share(view, rank, regression.since_ns, int(ends[-1]))
    if after is None:
        return 0.0
    before = run_queue_share(view, rank, int(ends[0]), regression.since_ns)
    return max(
        0.0,
        after * regression.after_ms - (after if before is None else before) * regression.before_ms,
    )


def _proof(regression: Regression, rank: int, least: float, queued_ms: float) -> Proof:
    read = (
        f"steps.wall_ns / n_steps, rank {rank}, {regression.records:,} records over the whole run"
    )
    return Proof(
        statistic="geometric mean of the step time after the change / before",
        value=100 * (regression.after_ms / regression.before_ms - 1),
        threshold=100 * least,
        unit="% more",
        formula="recoverable = step time after - before - growth of waiting for a core, or growth "
        "of the phase beyond the rest of the step where only that is sure, without what a rank "
        "waits longer in collectives; the change lies at the "
        "CUSUM's extreme, its standard error is sqrt(variance x autocorrelation time x (1/n "
        "before + 1/n after)) of the log step time",
        inputs=(
            Input("step time before", regression.before_ms, "ms", read),
            Input("step time after", regression.after_ms, "ms", read),
            Input(
                "growth of waiting for a core",
                queued_ms,
                "ms",
                "process.run_wait_ns_total per step, after - before",
            ),
            Input("change in standard errors", regression.change.score, "", "judged against 6"),
            Input(
                f"growth of {regression.phase}",
                regression.phase_ms,
                "ms",
                f"steps.{regression.phase}_ns",
            ),
            Input(
                "the same beyond the rest of the step",
                regression.phase_alone_ms,
                "ms",
                "after - before x rest's factor",
            ),
        ),
    )


def regression(view: RunView, rank: int) -> Regression | None:
    """The lasting slow-down of a rank against its own beginning; None without one."""
    rows = spread_rows(view.record.steps(rank) if view.windowed else view.per_rank[rank].rows)
    if len(rows) < 20:
        return None
    rows, measured = _with_cpu(rows)
    evenly = Evenly(rows)
    walls_ms = evenly.ms("wall_ns")
    change = level_change(np.log(np.maximum(walls_ms, 1e-6)))
    if change is None or change.after <= change.before:
        return None
    unit, work = work_of(evenly, change.index)
    if unit != "step":
        change = level_change(np.log(np.maximum(walls_ms / work, 1e-6)))
    if change is None or change.after <= change.before:
        return None
    grown = {name: _growth(evenly.ms(f"{name}_ns") / work, change.index) for name in wire.PHASES}
    phase = max(grown, key=lambda name: grown[name])
    if unit == "step" and phase in COMPUTE and samples_grew(view, rank):
        return None
    before_ms, after_ms = float(np.exp(change.before)), float(np.exp(change.after))
    step = evenly.step(change.index)
    cpu_ms = _growth(evenly.ms("cpu_ns") / work, change.index) if measured else None
    alone_ms = _beyond_the_rest(evenly.ms(f"{phase}_ns") / work, walls_ms / work, change.index)
    since_ns = evenly.began_ns(change.index)
    if _another_trains(view, rank, since_ns):
        return None
    return Regression(
        step,
        change,
        before_ms,
        after_ms,
        phase,
        grown[phase],
        alone_ms,
        grown["comm"],
        unit,
        len(rows),
        cpu_ms,
        since_ns,
    )


def _another_trains(view: RunView, rank: int, since_ns: int) -> bool:
    """Whether an optimizer of other parameters made its first update then, as that of a student
    whose teacher was trained first, and whose own may be gone.
    """
    begins = view.events("optimizer_begins", rank=rank)
    if any(abs(event["t_ns"] - since_ns) <= EARLIER_NS for event in begins):
        return True
    optimizers_before = 0
    for event in told_optimizers(view, rank):
        count = 1 + len(event["optimizer"].get("others") or ())
        came = count > optimizers_before > 0
        if came and -EARLIER_NS <= event["t_ns"] - since_ns <= LATER_NS:
            return True
        optimizers_before = max(optimizers_before, count)
    return False


def _with_cpu(rows: Array) -> tuple[Array, bool]:
    """The records, those without CPU time (before an evaluation, of fast steps) with as much of
    their wall time as the others have; and whether that is known of most.
    """
    measured = rows["cpu_ns"] >= 0
    if measured.all() or measured.mean() <= 0.5:
        return rows, bool(measured.all())
    share = float(rows["cpu_ns"][measured].sum()) / max(1.0, float(rows["wall_ns"][measured].sum()))
    rows = rows.copy()
    rows["cpu_ns"][~measured] = share * rows["wall_ns"][~measured]
    return rows, True


def _beyond_the_rest(phase_ms: Array, walls_ms: Array, index: int) -> float:
    """A phase's growth beyond that of the rest of the step: what no neighbour can do."""
    rest_ms = walls_ms - phase_ms
    before, rest_before = float(np.median(phase_ms[:index])), float(np.median(rest_ms[:index]))
    if rest_before < OTHERS * (before + rest_before):
        return 0.0
    factor = max(1.0, float(np.median(rest_ms[index:])) / rest_before)
    return float(np.median(phase_ms[index:])) - factor * before


def _growth(ms: Array, index: int) -> float:
    return float(np.median(ms[index:]) - np.median(ms[:index]))
