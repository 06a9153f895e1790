"""Compute efficiency: one phase of the step climbs steadily, because something in it piles up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.evenly import Evenly, spread_rows, work_of
from gputop_analysis.findings.registry import Spec
from gputop_analysis.findings.shares import everybody, run_queue
from gputop_analysis.findings.site import named
from gputop_analysis.findings.sites import top_site
from gputop_analysis.level import RAMP_BLOCKS, Ramp, ramp
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import picked
from gputop_analysis.view import Array, RunView

SLOWER, SLOWER_MS = 0.15, 0.5
"""Of the step time, and milliseconds: less growth is not worth a word."""
CLIMBING = tuple(
    name for name in wire.PHASES if name not in ("comm", "eval", "checkpoint", "compile")
)
COMPUTE, HOST = ("forward", "backward"), ("data", "h2d", "optimizer", "other")
"""Where the thread's CPU time is known: a neighbour on the core lengthens a step, but not this."""
MOSTLY_KNOWN = 0.8
SOME_REST = 0.15
"""Part of the step that the rest of it must take to tell how fast the machine is at the time."""
RAMP_ERRORS = 4.0
"""A climb is at least so many standard deviations of the stretches beside the line."""


@dataclass(frozen=True)
class Climb:
    """A phase that takes longer and longer."""

    rank: int
    phase: str
    ramp: Ramp
    """Milliseconds per step of equal work, of the phase or of the CPU time that it is part of."""
    alone_ms: float
    """By how much it has grown in the end beyond the factor by which the rest of the step did."""
    walls_ms: tuple[float, float]
    """Step time in the first and in the last tenth."""
    first_step: int
    steps: int

    @property
    def lost_ms(self) -> float:
        """Per step, on average so far: half of the growth of a straight climb."""
        return 0.5 * self.alone_ms


def climbing(view: RunView, rank: int) -> Climb | None:
    """The phase of a rank that climbs steadily over the whole run; None without one."""
    rows = _measured(view.record.steps(rank) if view.windowed else view.per_rank[rank].rows)
    if len(rows) < 20:
        return None
    evenly = Evenly(rows)
    walls_ms = evenly.ms("wall_ns")
    few = max(1, len(walls_ms) // 10)
    unit, work = work_of(evenly, len(walls_ms) // 2)
    walls_ms = walls_ms / work
    before, after = float(np.median(walls_ms[:few])), float(np.median(walls_ms[-few:]))
    if after <= before:
        return None
    phases = {name: evenly.ms(f"{name}_ns") / work for name in CLIMBING}
    # longer samples are more work, which nothing counts
    of_shapes = unit == "step" and _shapes_vary(view, rank)
    if short_of_cores(view, rank):  # then only CPU time tells a climb from a machine that fills up
        phases_by_clock = {}
    else:
        phases_by_clock = phases
    climbs = []
    for names, ms, of_ms, taken_at in _parts(rows, phases_by_clock, walls_ms, evenly.steps):
        if of_shapes and set(names) & set(COMPUTE):
            continue
        climb = _alone(ms, of_ms, taken_at)
        if climb:
            climbs.append(ClimbingPhases(names, *climb))
    part = max(climbs, default=None, key=lambda climb: climb.alone_ms)
    if part is None:
        return None
    grown = {
        name: float(np.median(phases[name][-few:]) - np.median(phases[name][:few]))
        for name in part.phases
    }
    phase = max(grown, key=lambda name: grown[name])
    first = evenly.step(0)
    steps = int(rows["step"][-1]) - first + 1
    return Climb(rank, phase, part.ramp, part.alone_ms, (before, after), first, steps)


QUEUED = 0.3
"""Of the time spent waiting for a core, from which times by the clock follow the machine's load."""


def short_of_cores(view: RunView, rank: int) -> bool:
    """Whether the training thread waits for a core much of the time."""
    queue = run_queue(view, rank)
    return queue is not None and queue.share.low > QUEUED


def _measured(rows: Array) -> Array:
    """Rows whose phases were measured: those estimated from windows follow them late."""
    rows = spread_rows(rows)
    return picked(rows, (rows["flags"] & wire.F_ESTIMATED) == 0)


FEW_SHAPES = 4
"""As of a last batch that is smaller, or of two kinds of batches in turn."""


def _shapes_vary(view: RunView, rank: int) -> bool:
    distinct = (view.hello(rank).get("shapes") or {}).get("distinct") or 0
    return int(distinct) > FEW_SHAPES or samples_grew(view, rank)


GREW_LATE = 20
"""The first batch whose larger samples are a schedule of the script's, and no mix of sizes."""


def samples_grew(view: RunView, rank: int) -> bool:
    """Whether samples became larger during the run, as where sequences grow in stages."""
    shapes = view.hello(rank).get("shapes") or {}
    return int(shapes.get("grew_at") or 0) >= GREW_LATE


class ClimbingPhases(NamedTuple):
    """One or more phases that climb together, and by how much."""

    phases: tuple[str, ...]
    alone_ms: float
    ramp: Ramp


def _parts(
    rows: Array, phases: dict[str, Array], walls_ms: Array, steps: Array
) -> Iterator[tuple[tuple[str, ...], Array, Array, Array]]:
    """Phases with their time, the whole step's and the steps that it was taken at: by the clock,
    else by CPU time where known.
    """
    for name, ms in phases.items():
        yield (name,), ms, walls_ms, steps
    counted = (rows["cpu_ns"] >= 0) & (rows["compute_cpu_ns"] >= 0)
    if counted.mean() > MOSTLY_KNOWN:
        evenly = Evenly(picked(rows, counted))
        cpu_ms, compute_ms = evenly.ms("cpu_ns"), evenly.ms("compute_cpu_ns")
        yield COMPUTE, compute_ms, cpu_ms, evenly.steps
        yield HOST, cpu_ms - compute_ms, cpu_ms, evenly.steps


def _alone(ms: Array, of_ms: Array, steps: Array) -> tuple[float, Ramp] | None:
    """By how much a part of a step climbs beside the rest of it; None where it does not, or by too
    little.

    What slows the whole machine for a while slows the rest of the step as well, and is taken off by
    that.
    """
    rest_ms = of_ms - ms
    if np.median(rest_ms) > SOME_REST * np.median(of_ms):
        ms = ms / np.repeat(*_pace(rest_ms))[: len(ms)]
    line = ramp(ms, steps)
    if line is None:
        return None
    alone_ms = line.end - line.begin
    least_ms = max(
        SLOWER * (line.begin + float(np.median(rest_ms))), SLOWER_MS, RAMP_ERRORS * line.error
    )
    return (alone_ms, line) if alone_ms >= least_ms else None


def _pace(rest: Array) -> tuple[Array, list[int]]:
    """Median rest of the step in each stretch over that of all, and the stretches' lengths."""
    parts = np.array_split(rest, RAMP_BLOCKS)
    medians = np.array([np.median(part) if len(part) else np.nan for part in parts])
    return np.maximum(medians / np.median(rest), 1e-3), [len(part) for part in parts]


def told_climb(view: RunView, spec: Spec, climb: Climb) -> Finding:
    """The finding: something piles up."""
    rank, (before, after) = climb.rank, climb.walls_ms
    site = top_site(view, climb.phase, rank=rank, all_work=True)
    at = named(site, " at {}")
    lost = climb.lost_ms
    return spec.make(
        severity="high" if after > 1.5 * before else "medium",
        title=f"steps get slower and slower: {climb.phase} takes {climb.alone_ms:.1f} ms more "
        "than at "
        "first" + (f", on rank {rank}" if len(view.ranks) > 1 else ""),
        evidence=f"{before:.1f} ms a step at first, {after:.1f} ms "
        f"now; {climb.phase} climbs steadily over steps "
        f"{climb.first_step:,} to "
        f"{climb.first_step + climb.steps - 1:,}, by "
        f"{climb.alone_ms:.1f} ms beyond the rest of the "
        f"step (Kendall's tau {climb.ramp.tau:.2f})" + (f"; {site.words}" if site else ""),
        fix=f"look for what piles up in {climb.phase}{at}: a hook that is registered at each "
        "step, a list or history that is gone through again, a graph or cache that grows",
        rank=rank if len(view.ranks) > 1 else everybody(view),
        site=site.site if site else None,
        confidence=0.9,
        recoverable_ms_per_step=lost,
        interval_ms_per_step=(max(0.0, lost - climb.ramp.error), lost + climb.ramp.error),
        proof=Proof(
            statistic=f"growth of {climb.phase} beyond the rest of the step / step time at first",
            value=100 * climb.alone_ms / before,
            threshold=100 * SLOWER,
            unit="%",
            formula="line through medians of 24 stretches (Theil-Sen), which fits better than any "
            "one step; recoverable = half of the growth, its mean over the run",
            inputs=(
                Input(
                    f"{climb.phase} at first",
                    climb.ramp.begin,
                    "ms",
                    f"steps.{climb.phase}_ns, rank {rank}",
                ),
                Input(f"{climb.phase} now", climb.ramp.end, "ms", "the line's end"),
                Input("step time at first", before, "ms", "first tenth of the steps"),
                Input("Mann-Kendall p", climb.ramp.p, "", "medians of 24 stretches"),
            ),
        ),
    )
