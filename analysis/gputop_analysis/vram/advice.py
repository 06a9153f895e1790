"""What to do about an estimate: changes that save memory, and the largest micro-batch that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from gputop_analysis import catalog
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.fits import Fit, Need, overhead, smallest, usable
from gputop_analysis.vram.levers import WORTH, Lever, changes, levers
from gputop_analysis.vram.setup import Setup
from gputop_analysis.vram.tiers import has_profile, solve, two_stacks

MOST = 4096
"""Micro-batches beyond this are not searched."""


class Reserved(NamedTuple):
    """What a setup reserves, and which tier says so."""

    tier: str
    bytes: int


def may_advise(setup: Setup) -> bool:
    """Whether a tier that needs no trace knows changes of this setup."""
    return not setup.peft and (not two_stacks(setup) or has_profile(setup))


def advised(estimate: Estimate, need: Need, gpu: str = "") -> Estimate:
    """With levers and the largest micro-batch.

    Args:
        estimate: without.
        need: of its setup.
        gpu: the one that the micro-batch is wanted for; empty: the smallest that fits.

    Raises:
        LookupError: no GPU of that name.
    """
    setup = estimate.setup
    reserved_of = _like(
        setup, need.reserved, by_profile=estimate.peak.tier != "formula" and has_profile(setup)
    )
    wanted = catalog.gpu(gpu) if gpu else smallest(setup, need)
    if wanted is None:
        largest_batch = None
    else:
        largest_batch = _largest(estimate, need, reserved_of, wanted)
    change_list = list(changes(setup))
    saving = levers(
        need.reserved, change_list, [reserved_of(changed) for _, changed in change_list]
    )
    # ranks that share out need buffers of NCCL's, which one GPU alone does not
    before = need.reserved + overhead(setup)
    after = {lever: lever.reserved + overhead(lever.setup) for lever in saving}
    worth = [lever for lever in saving if before - after[lever] >= WORTH]
    worth.sort(key=after.__getitem__)
    opened = tuple(_with_gpu(lever, estimate.fits) for lever in worth)
    return replace(
        estimate, levers=opened, gpu=wanted.name if wanted else "", max_micro_batch=largest_batch
    )


def _like(setup: Setup, reserved: int, *, by_profile: bool) -> Callable[[Setup], int]:
    """From a changed setup to the bytes it reserves, as far as the estimate of the unchanged one is
    right: the tier that knows the change estimates both, and their ratio counts. A change that none
    knows saves nothing.

    Args:
        setup: the unchanged one.
        reserved: what it reserves.
        by_profile: whether a profile covers it; only then one may speak for a changed one.
    """
    unchanged = cache(lambda tier: solve(setup, tier).reserved)

    def reserved_of(changed: Setup) -> int:
        if changed == setup:
            return reserved
        estimated = _reserved(changed, by_profile=by_profile)
        if estimated is None:
            return reserved
        return round(reserved * estimated.bytes / unchanged(estimated.tier))

    return reserved_of


def _reserved(setup: Setup, *, by_profile: bool) -> Reserved | None:
    """What a changed setup reserves, by its profile or by the formula; None where neither knows."""
    from gputop_analysis.vram import profiles

    profiled = profiles.reserved(setup) if by_profile else None
    if profiled is not None:
        return Reserved("profile", profiled)
    if two_stacks(setup):
        return None
    return Reserved("formula", solve(setup, "formula").reserved)


def _largest(
    estimate: Estimate, need: Need, reserved_of: Callable[[Setup], int], wanted: catalog.GpuSpec
) -> int:
    """The largest micro-batch that fits on a GPU."""
    room = usable(wanted, estimate.setup) - estimate.context - estimate.nccl
    least_of = _least if estimate.peak.tier == "profile" else lambda _: 0
    largest_batch = max_micro_batch(estimate.setup, reserved_of, room, least_of)
    if need.within(room):
        return max(largest_batch, estimate.setup.micro_batch)
    return largest_batch


def _least(setup: Setup) -> int:
    from gputop_analysis.vram import profiles

    return profiles.least(setup)


def max_micro_batch(
    setup: Setup,
    needs: Callable[[Setup], int],
    room: int,
    least: Callable[[Setup], int] = lambda _: 0,
) -> int:
    """The largest micro-batch that needs at most ``room`` bytes; 0: not even one. More tokens never
    need less.

    Memory is nearly a straight line in the micro-batch, so the line through two points says where
    to look; every other look halves what is left, for where it is bent. ``least`` tells quickly
    what is not enough, so that what is far too large is not played.
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
        if at_middle <= room:
            low, at_low, high, at_high = (middle, at_middle, high, at_high)
        else:
            low, at_low, high, at_high = (low, at_low, middle, at_middle)
        look += 1
    return low


def _with_gpu(lever: Lever, fits: tuple[Fit, ...]) -> Lever:
    """With the smallest GPU that the lever opens."""
    spec = smallest(lever.setup, Need(lever.reserved, lever.reserved))
    before = next((fit for fit in fits if fit.fits), None)
    if spec is None or (before is not None and spec.usable_bytes >= before.memory):
        return lever
    return lever._replace(gpu=spec.name, gpu_memory=spec.usable_bytes)
