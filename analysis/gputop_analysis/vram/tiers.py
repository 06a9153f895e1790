"""One question, three tiers: what answers a setup, and all that follows from its peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from gputop_analysis import catalog
from gputop_analysis.vram import conf, overhead
from gputop_analysis.vram.answer import TIERS, Peak
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.fits import Fit, Need, fits, smallest
from gputop_analysis.vram.intervals import interval
from gputop_analysis.vram.levers import Lever, levers
from gputop_analysis.vram.replay import peak as replayed
from gputop_analysis.vram.rules import check
from gputop_analysis.vram.setup import Setup

Solver = Callable[[Setup], Peak]
MOST = 4096
"""Micro-batches beyond this are not searched."""


class NotCoveredError(ValueError):
    """The tier that was asked for does not know this setup."""


def estimate(
    setup: Setup,
    tier: str | None = None,
    capacity: int | None = None,
    *,
    log: EventLog | None = None,
    gpu: str = "",
    advice: bool = True,
) -> Estimate:
    """What a setup needs.

    Args:
        setup: the model and how it is trained.
        tier: ``trace``, ``profile`` or ``formula``; None: a trace if ``log`` is given, else the first that covers it.
        capacity: bytes of the GPU that it is to run on; the replay then tells retries and where memory runs out.
        log: the events of a trace of this setup, with all layers.
        gpu: the GPU that the largest micro-batch is wanted for; empty: the smallest that fits.
        advice: whether to look for levers and the largest micro-batch, which takes a dozen further estimates.

    Raises:
        ValueError: an impossible combination (which rule) or an unknown tier.
        NotCoveredError: the tier does not cover the setup.
        LookupError: no GPU of that name.
    """
    if tier not in (None, *TIERS):
        raise ValueError(f"no tier '{tier}': choose from {', '.join(TIERS)}")
    check(setup)
    if log is not None and tier in (None, "trace"):
        found, runs_in = replayed(log, "trace", conf.parse(setup.allocator)), _by_replay(log, setup)
    else:
        found = solve(setup, tier)
        runs_in = (lambda room: room >= found.least) if found.least else None
    need = Need(found.allocated, found.reserved, runs_in)
    room = None if capacity is None else max(capacity - overhead.CONTEXT - overhead.nccl(setup), 0)
    if log is not None and room is not None and room < found.reserved:
        found = _crowded(log, setup, found, room)
    if log is None and room is not None and found.least and found.least <= room < found.reserved:
        found = replace(found, reserved=room)
    answer = Estimate(
        setup=setup,
        peak=found,
        context=overhead.CONTEXT,
        nccl=overhead.nccl(setup),
        interval_pct=interval(setup, found.tier),
        fits=fits(setup, need),
        runs_in_capacity=None if room is None else need.within(room),
        sources=overhead.SOURCES if setup.parallel.world > 1 else overhead.SOURCES[:1],
    )
    return _advised(answer, need, gpu) if advice else answer


def solve(setup: Setup, tier: str | None = None) -> Peak:
    """The peak by the profile tier where it covers the setup, else by the formula.

    Raises:
        NotCoveredError: the tier asked for does not cover it.
    """
    if tier == "trace":
        raise NotCoveredError("a trace needs a Python with torch; the profile and formula tiers answer without")
    found = None if tier == "formula" else _profile(setup)
    if found is not None:
        return found
    if tier == "profile":
        raise NotCoveredError(f"no event profile covers {setup.model.name} trained so; the formula tier does")
    from gputop_analysis.vram import formula

    return formula.peak(setup)


def max_micro_batch(setup: Setup, fitting: Callable[[Setup], bool]) -> int:
    """The largest micro-batch for which ``fitting`` holds; 0: not even one. More tokens never need less."""
    if not fitting(setup.but(micro_batch=1)):
        return 0
    low, high = 1, 2
    while high <= MOST and fitting(setup.but(micro_batch=high)):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(setup.but(micro_batch=middle)) else (low, middle)
    return low


def _profile(setup: Setup) -> Peak | None:
    known = import_module("gputop_analysis.vram.profiles")
    return known.peak(setup) if hasattr(known, "peak") else None


def _by_replay(log: EventLog, setup: Setup) -> Callable[[int], bool]:
    options = conf.parse(setup.allocator)
    return lambda capacity: not replayed(log, "trace", options, capacity).oom


def _crowded(log: EventLog, setup: Setup, free: Peak, room: int) -> Peak:
    """The peak on a GPU with less room than would be reserved: what it comes to, or where it runs out of memory."""
    tight = replayed(log, "trace", conf.parse(setup.allocator), room)
    return replace(free, oom=tight.oom, retries=tight.retries) if tight.oom else tight


def _advised(answer: Estimate, need: Need, gpu: str) -> Estimate:
    """With levers and the largest micro-batch; after a trace both come from a tier without one, scaled to it."""
    setup, traced = answer.setup, answer.peak.tier == "trace"
    tier = None if traced else answer.peak.tier
    scale = answer.peak.reserved / solve(setup).reserved if traced else 1.0

    def reserved(changed: Setup) -> int:
        return round(solve(changed, tier).reserved * scale)

    found = [_with_gpu(lever, answer.fits) for lever in levers(setup, answer.peak.reserved, reserved)]
    wanted = catalog.gpu(gpu) if gpu else smallest(setup, need)
    if wanted is None:
        return replace(answer, levers=tuple(found))
    room = wanted.usable_bytes - answer.context - answer.nccl
    most = max_micro_batch(setup, lambda changed: reserved(changed) <= room)
    if need.within(room):
        most = max(most, setup.micro_batch)
    return replace(answer, levers=tuple(found), gpu=wanted.name, max_micro_batch=most)


def _with_gpu(lever: Lever, known: tuple[Fit, ...]) -> Lever:
    """With the smallest GPU that the lever opens."""
    need = Need(lever.reserved, lever.reserved)
    spec = smallest(lever.setup, need)
    before = next((fit for fit in known if fit.fits), None)
    if spec is None or (before is not None and spec.usable_bytes >= before.memory):
        return lever
    return replace(lever, gpu=spec.name, gpu_memory=spec.usable_bytes)
