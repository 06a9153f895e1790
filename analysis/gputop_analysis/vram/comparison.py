"""What a run measured against what was estimated for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gputop_analysis.view import RunView
from gputop_analysis.vram.estimate import gib
from gputop_analysis.vram.from_run import setup_of
from gputop_analysis.vram.intervals import kind
from gputop_analysis.vram.setup import Setup
from gputop_analysis.vram.tiers import solve

ENOUGH_STEPS = 2
"""The second step is the first with all in memory: the optimizer's states are made in the first."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Highest of all ranks and steps; bytes."""

    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Estimated and measured peak of a run; bytes."""

    setup: Setup
    tier: str
    estimated: int
    """Peak allocated, by the tier alone."""
    measured: Measured

    @property
    def ratio(self) -> float:
        """Measured over estimated peak allocated."""
        return self.measured.allocated / max(self.estimated, 1)

    def record(self, run: str, t_ns: int) -> dict[str, Any]:
        """What is stored, so that later estimates of this model start from it."""
        return {
            "model": self.setup.model.name,
            "kind": kind(self.setup),
            "tier": self.tier,
            "ratio": round(self.ratio, 6),
            "estimated_allocated_gib": gib(self.estimated),
            "measured_allocated_gib": gib(self.measured.allocated),
            "measured_reserved_gib": gib(self.measured.reserved),
            "run": run,
            "t_ns": t_ns,
        }


def measured(view: RunView) -> Measured | None:
    """What the ranks' allocators held at most; None on a CPU, and before the second step."""
    allocated = reserved = 0
    for series in view.per_rank.values():
        if series.total_steps() >= ENOUGH_STEPS:
            allocated = max(allocated, int(series.rows["peak_allocated_bytes"].max()))
            reserved = max(reserved, int(series.rows["reserved_bytes"].max()))
    return Measured(allocated, reserved) if allocated > 0 else None


def compare(view: RunView) -> Comparison | None:
    """The comparison of a run.

    Returns:
        None where the run tells no architecture, or its ranks hold no GPU memory.
    """
    measured_sizes = measured(view)
    setup = setup_of(view) if measured_sizes is not None else None
    if measured_sizes is None or setup is None:
        return None
    try:
        peak = solve(setup)
    except ValueError:
        return None
    return Comparison(setup, peak.tier, peak.allocated, measured_sizes)
