"""What a peak comes to on GPUs: the device total, where it fits, and whether a given GPU has room
for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gputop_analysis.vram import overhead
from gputop_analysis.vram.answer import Peak
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.fits import Need, fits
from gputop_analysis.vram.intervals import interval
from gputop_analysis.vram.setup import Setup
from gputop_analysis.vram.tiers import Solver


def sized(setup: Setup, solver: Solver, capacity: int | None = None) -> tuple[Estimate, Need]:
    """The estimate of a setup without advice, and what it asks of a GPU.

    Args:
        setup: the model and how it is trained.
        solver: what answers it.
        capacity: bytes of the GPU that it is to run on; a replay then tells retries and where
            memory runs out.
    """
    peak = solver(None)
    need = Need(peak.allocated, peak.reserved, _runs_in(setup, peak, solver))
    nccl = overhead.nccl(setup)
    room = None if capacity is None else max(capacity - overhead.CONTEXT - nccl, 0)
    estimate = Estimate(
        setup=setup,
        peak=peak if room is None else _crowded(solver, peak, room),
        context=overhead.CONTEXT,
        nccl=nccl,
        interval_pct=interval(setup, peak.tier),
        fits=fits(setup, need),
        runs_in_capacity=None if room is None else need.within(room),
        sources=overhead.SOURCES if setup.parallel.world > 1 else overhead.SOURCES[:1],
    )
    return estimate, need


def _runs_in(setup: Setup, peak: Peak, solver: Solver) -> Callable[[int], bool]:
    """Whether it runs where segments may take so many bytes."""
    if peak.tier != "profile":
        return lambda room: not solver(room).oom
    from gputop_analysis.vram import profiles

    def runs(room: int) -> bool:
        replay = profiles.replay_of(setup)
        return replay is not None and replay.runs_in(room)

    return runs


def _crowded(solver: Solver, free: Peak, room: int) -> Peak:
    """The peak on a GPU with less room than would be reserved: what it comes to, or where it runs
    out of memory.
    """
    if room >= free.reserved:
        return free
    tight = solver(room)
    return replace(free, oom=tight.oom, retries=tight.retries) if tight.oom else tight
