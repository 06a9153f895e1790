"""One question, three tiers: what answers a setup, and all that follows from its peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from gputop_analysis import catalog
from gputop_analysis.catalog.families import traits
from gputop_analysis.vram import conf, overhead
from gputop_analysis.vram.answer import TIERS, Peak
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.fits import Fit, Need, fits, smallest
from gputop_analysis.vram.intervals import interval
from gputop_analysis.vram.levers import Lever, changes, levers
from gputop_analysis.vram.rules import check
from gputop_analysis.vram.setup import Setup

if TYPE_CHECKING:
    from gputop_analysis.vram.eventlog import EventLog

Begin = Callable[[Callable[[Setup], int], Sequence[Setup]], Callable[[], Sequence[int]]]
"""Begins to ask a question of each setup; what it returns waits for all answers."""
Solver = Callable[[int | None], Peak]
"""The peak of one setup where segments may take so many bytes; None: as many as they want."""
MOST = 4096
"""Micro-batches beyond this are not searched."""


class NotCoveredError(ValueError):
    """The tier that was asked for does not know this setup."""


def in_turn(work: Callable[[Setup], int], setups: Sequence[Setup]) -> Callable[[], Sequence[int]]:
    """Asks nothing before it is waited for, then one after the other."""
    return lambda: [work(setup) for setup in setups]


def estimate(
    setup: Setup,
    tier: str | None = None,
    capacity: int | None = None,
    *,
    log: EventLog | None = None,
    gpu: str = "",
    advice: bool = True,
    begin: Begin = in_turn,
) -> Estimate:
    """What a setup needs.

    Args:
        setup: the model and how it is trained.
        tier: ``trace``, ``profile`` or ``formula``; None: a trace if ``log`` is given, else the first that covers it.
        capacity: bytes of the GPU that it is to run on; a replay then tells retries and where memory runs out.
        log: the events of a trace of this setup, with all layers.
        gpu: the GPU that the largest micro-batch is wanted for; empty: the smallest that fits.
        advice: whether to look for levers and the largest micro-batch, which takes a dozen further estimates.
        begin: begins to ask what the levers come to; another processor may do so while this one sees to the rest.

    Raises:
        ValueError: an impossible combination (which rule) or an unknown tier.
        NotCoveredError: the tier does not cover the setup.
        LookupError: no GPU of that name.
    """
    if tier not in (None, *TIERS):
        raise ValueError(f"no tier '{tier}': choose from {', '.join(TIERS)}")
    check(setup)
    advised = advice and (not two_stacks(setup) or _covers(setup))
    asked = list(changes(setup)) if advised else []
    ask = partial(_changed, tier != "formula" and _covers(setup))
    others = begin(ask, [changed for _, changed in asked])
    besides = overhead.CONTEXT + overhead.nccl(setup)
    solver = _solver(setup, tier, log)
    found = solver(None)
    need = Need(found.allocated, found.reserved, _runs_in(setup, found, solver))
    room = None if capacity is None else max(capacity - besides, 0)
    answer = Estimate(
        setup=setup,
        peak=found if room is None else _crowded(solver, found, room),
        context=overhead.CONTEXT,
        nccl=overhead.nccl(setup),
        interval_pct=interval(setup, found.tier),
        fits=fits(setup, need),
        runs_in_capacity=None if room is None else need.within(room),
        sources=overhead.SOURCES if setup.parallel.world > 1 else overhead.SOURCES[:1],
    )
    return _advised(answer, need, gpu, ask, asked, others) if advised else answer


def two_stacks(setup: Setup) -> bool:
    """Whether the model has an encoder and a decoder, whose layers differ: a formula counts one stack."""
    return traits(setup.model.family).encoder_decoder


def solve(setup: Setup, tier: str | None = None) -> Peak:
    """The peak by the profile tier where it covers the setup, else by the formula.

    Raises:
        NotCoveredError: the tier asked for does not cover it.
    """
    return _solver(setup, tier, None)(None)


def max_micro_batch(
    setup: Setup, needs: Callable[[Setup], int], room: int, least: Callable[[Setup], int] = lambda _: 0
) -> int:
    """The largest micro-batch that needs at most ``room`` bytes; 0: not even one. More tokens never need less.

    Memory is nearly a straight line in the micro-batch, so the line through two points says where to look; every other
    look halves what is left, for where it is bent. ``least`` tells quickly what is not enough, so that what is far too
    large is not played.
    """

    def need(size: int) -> int:
        changed = setup.but(micro_batch=size)
        bound = least(changed)
        return bound if bound > room else needs(changed)

    low, at_low, high, at_high = 1, need(1), 2, need(2)
    if at_low > room:
        return 0
    if at_high <= room:
        slope = max(at_high - at_low, 1)
        low, at_low = high, at_high
        high = min(low + (room - at_high) // slope + 1, MOST)
        at_high = need(high)
    while at_high <= room and high < MOST:
        low, at_low = high, at_high
        high = min(2 * high, MOST)
        at_high = need(high)
    if at_high <= room:
        return high
    look = 0
    while high - low > 1:
        share = 0.5 if look % 2 else (room - at_low) / (at_high - at_low)
        middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
        at_middle = need(middle)
        low, at_low, high, at_high = (
            (middle, at_middle, high, at_high) if at_middle <= room else (low, at_low, middle, at_middle)
        )
        look += 1
    return low


def _solver(setup: Setup, tier: str | None, log: EventLog | None) -> Solver:
    if log is not None and tier in (None, "trace"):
        from gputop_analysis.vram.replay import Replay, summary

        replay = Replay(log, conf.parse(setup.allocator))
        return lambda room: summary(log, replay.played(room), "trace")
    if tier == "trace":
        raise NotCoveredError("a trace needs a Python with torch; the profile and formula tiers answer without")
    profile = None if tier == "formula" else _profile(setup, None)
    if profile is not None:
        return lambda room: profile if room is None else _profile(setup, room) or profile
    if two_stacks(setup):
        raise NotCoveredError(
            f"{setup.model.name} has an encoder and a decoder, and no event profile covers it trained so: a trace "
            "does, --tier trace with torch"
        )
    if tier == "profile":
        raise NotCoveredError(f"no event profile covers {setup.model.name} trained so; the formula tier does")
    from gputop_analysis.vram import formula

    return lambda room: formula.peak(setup, room)


def _profile(setup: Setup, room: int | None) -> Peak | None:
    from gputop_analysis.vram import profiles

    return profiles.peak(setup, room)


def _runs_in(setup: Setup, found: Peak, solver: Solver) -> Callable[[int], bool]:
    """Whether it runs where segments may take so many bytes."""
    if found.tier != "profile":
        return lambda room: not solver(room).oom
    from gputop_analysis.vram import profiles

    def runs(room: int) -> bool:
        replay = profiles.replay_of(setup)
        return replay is not None and replay.runs_in(room)

    return runs


def _crowded(solver: Solver, free: Peak, room: int) -> Peak:
    """The peak on a GPU with less room than would be reserved: what it comes to, or where it runs out of memory."""
    if room >= free.reserved:
        return free
    tight = solver(room)
    return replace(free, oom=tight.oom, retries=tight.retries) if tight.oom else tight


def advised(answer: Estimate, need: Need, gpu: str) -> Estimate:
    """With levers and the largest micro-batch, for a peak that was changed since."""
    asked = list(changes(answer.setup))
    ask = partial(_changed, answer.peak.tier != "formula" and _covers(answer.setup))
    return _advised(answer, need, gpu, ask, asked, in_turn(ask, [changed for _, changed in asked]))


def _advised(
    answer: Estimate,
    need: Need,
    gpu: str,
    ask: Callable[[Setup], int],
    asked: list[tuple[str, Setup]],
    others: Callable[[], Sequence[int]],
) -> Estimate:
    """With levers and the largest micro-batch.

    Args:
        answer: without.
        need: of the unchanged setup.
        gpu: the one that the micro-batch is wanted for.
        ask: ``_changed``, for this setup.
        asked: ``changes`` of the setup.
        others: gives what ``ask`` says of each.
    """
    scale = _scale(answer.setup, need.reserved)
    wanted = catalog.gpu(gpu) if gpu else smallest(answer.setup, need)

    def again(setup: Setup) -> int:
        return need.reserved if setup == answer.setup else scale(ask(setup))

    most = None if wanted is None else _largest(answer, need, again, wanted)
    found = levers(need.reserved, asked, list(map(scale, others())))
    found = tuple(_with_gpu(lever, answer.fits) for lever in found)
    return replace(answer, levers=found, gpu=wanted.name if wanted else "", max_micro_batch=most)


def _largest(answer: Estimate, need: Need, again: Callable[[Setup], int], wanted: catalog.GpuSpec) -> int:
    """The largest micro-batch that fits on a GPU."""
    room = wanted.usable_bytes - answer.context - answer.nccl
    most = max_micro_batch(answer.setup, again, room, _least if answer.peak.tier == "profile" else lambda _: 0)
    return max(most, answer.setup.micro_batch) if need.within(room) else most


def _changed(covered: bool, setup: Setup) -> int:
    """What a changed setup reserves: by its profile, below 0 by the formula, 0 where neither knows.

    Args:
        covered: whether a profile covers the unchanged setup: only then one may speak for a changed one.
        setup: the changed one.
    """
    by_profile = _profile_reserved(setup) if covered else None
    if by_profile is not None:
        return by_profile
    return 0 if two_stacks(setup) else -solve(setup, "formula").reserved


def _scale(setup: Setup, reserved: int) -> Callable[[int], int]:
    """From what ``_changed`` says to bytes reserved: the tier that said it estimates both, and their ratio counts.

    Nothing is saved by a change that none knows.
    """
    unchanged = cache(lambda tier: solve(setup, tier).reserved)

    def scaled(changed: int) -> int:
        if not changed:
            return reserved
        return round(reserved * abs(changed) / unchanged("profile" if changed > 0 else "formula"))

    return scaled


def _covers(setup: Setup) -> bool:
    from gputop_analysis.vram import profiles

    return profiles.covers(setup)


def _profile_reserved(setup: Setup) -> int | None:
    from gputop_analysis.vram import profiles

    return profiles.reserved(setup)


def _least(setup: Setup) -> int:
    from gputop_analysis.vram import profiles

    return profiles.least(setup)


def _with_gpu(lever: Lever, known: tuple[Fit, ...]) -> Lever:
    """With the smallest GPU that the lever opens."""
    spec = smallest(lever.setup, Need(lever.reserved, lever.reserved))
    before = next((fit for fit in known if fit.fits), None)
    if spec is None or (before is not None and spec.usable_bytes >= before.memory):
        return lever
    return lever._replace(gpu=spec.name, gpu_memory=spec.usable_bytes)
