"""The caching allocator without options, or with expandable segments, in one loop: far faster than
``allocator``.

Written for speed, which is why it repeats the rules of ``allocator`` and ``blocks``: a method call
for each event costs more than the work. Blocks are numbers, lists say what lies before and after
each, and free ones lie in bins by their size. A training step asks for the same few sizes again and
again: each storage knows the bin of its size, where two of three requests find a block and three of
four blocks go back to.

With expandable segments a pool is one range of addresses. A free block at its end serves only what
fits in no other one (``find_free_block`` of ``CUDACachingAllocator.cpp`` passes it over, since it
can still grow), so it is in no bin.

A GPU's capacity changes nothing before the first segment that does not fit in it. So a playback
remembers how things stood where each capacity of interest was reached, and playing it again with
that much room goes on from there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gputop_analysis.vram.blocks import MIN_LARGE, NEVER, ROUND_LARGE, SMALL, SMALL_SEGMENT, UNIT
from gputop_analysis.vram.conf import LARGE_SEGMENT

_LARGE_SEGMENT = LARGE_SEGMENT // UNIT
_AT = 24
"""Bits: the spot of a block is ``address << _AT | number``."""
_NUMBER = (1 << _AT) - 1


class Played(NamedTuple):
    """Sizes in units of 512 bytes."""

    whole: dict[int, int]
    """What storages got that are in a larger block than they asked for."""
    reserved: int
    """The most."""
    at_most: int
    """The storage for which the last large segment was made before the most was reserved; 0: none.
    A small one may come at any time of the step and adds next to nothing.
    """
    retries: int
    """How often everything cached was given back because the capacity was reached."""
    oom: int
    """The storage for which there was no memory, after which nothing was played; 0: none."""


class _Pool(NamedTuple):
    """The free blocks of one stream, small or large."""

    bins: dict[int, list[int]]
    """Spots by size, the lowest address first; those of the sizes that are asked for stay when they
    are empty.
    """
    sizes: list[int]
    """The keys of ``bins``, sorted."""

    def copy(self) -> _Pool:
        return _Pool({size: spots.copy() for size, spots in self.bins.items()}, self.sizes.copy())


@dataclass(slots=True)
class _State:
    """How things stand after some events; blocks are indices of lists, 0 stands for none."""

    pools: list[_Pool]
    """For each stream that of small blocks, then for each that of large ones."""
    block: list[int]
    """Of each storage."""
    whole: dict[int, int] = field(default_factory=dict)
    """What storages got that are in a larger block than they asked for."""
    size: list[int] = field(default_factory=lambda: [0])
    spot: list[int] = field(default_factory=lambda: [0])
    before: list[int] = field(default_factory=lambda: [0])
    """The block that ends where this one begins, in the same segment."""
    after: list[int] = field(default_factory=lambda: [0])
    free: list[bool] = field(default_factory=lambda: [False])
    done: int = 0
    """Events played."""
    fresh: int = 0
    """Address of the next segment."""
    reserved: int = 0
    most: int = 0
    at_most: int = 0
    retries: int = 0
    oom: int = 0
    tails: list[int] = field(default_factory=list)
    """Expandable segments: the last block of each pool."""

    def copy(self) -> _State:
        lists = ("block", "whole", "size", "spot", "before", "after", "free", "tails")
        own = {name: getattr(self, name).copy() for name in lists}
        return replace(self, pools=[pool.copy() for pool in self.pools], **own)


class Playback:
    """Storages and what happens to them.

    Args:
        kind: of each storage, an index of the next two; index 0 is a dummy.
        sizes: of each kind, in units of 512 bytes, at least 1.
        streams: of each kind, counted from 0.
        events: ``i`` allocates the storage ``i``, ``-i`` frees it.
        expandable: with expandable segments; there must be no capacity then.
    """

    def __init__(
        self,
        kind: list[int],
        sizes: list[int],
        streams: list[int],
        events: list[int],
        expandable: bool = False,
    ) -> None:
        self.kind = kind
        self.sizes = sizes
        self.expandable = expandable
        self.events = events
        self.streams = max(streams, default=0) + 1
        self.kinds = [
            (size, stream + self.streams * (size > SMALL))
            for size, stream in zip(sizes, streams, strict=True)
        ]
        """Size and pool."""
        self.asked = frozenset(size for size, _ in self.kinds)
        self._moments: list[_State] = []

    def play(self, capacity: int | None = None, remember: Iterable[int] = ()) -> Played:
        """With segments that take at most ``capacity`` units; None: as many as they want.

        Args:
            capacity: in units.
            remember: capacities, the least first, with which it may be played again.
        """
        limit = NEVER if capacity is None else capacity
        state = next(
            (moment.copy() for moment in reversed(self._moments) if moment.most <= limit), None
        )
        state = state or self._start()
        for stop in remember:
            if stop >= limit or _play(state, self, stop, pause=True):
                break
            if not self._moments or self._moments[-1].done < state.done:
                self._moments.append(state.copy())
        _play(state, self, limit)
        return Played(state.whole, state.most, state.at_most, state.retries, state.oom)

    def _start(self) -> _State:
        pools = [_Pool({}, []) for _ in range(2 * self.streams)]
        for size, which in sorted(set(self.kinds)):
            pools[which].bins[size] = []
            pools[which].sizes.append(size)
        state = _State(pools, [0] * len(self.kind), tails=[0] * len(pools))
        state.free[0] = self.expandable  # so that a block with no neighbour is looked at twice
        return state


def _play(state: _State, playback: Playback, limit: int, pause: bool = False) -> bool:
    """The events that are left, up to one that runs out of memory, or with ``pause`` up to one that
    reaches the limit.

    Whether none did.
    """
    kind, kinds, streams, asked = playback.kind, playback.kinds, playback.streams, playback.asked
    pools, block_of, whole = state.pools, state.block, state.whole
    size_of, spot_of, before, after, free = (
        state.size,
        state.spot,
        state.before,
        state.after,
        state.free,
    )
    bin_of = [pools[which].bins[size] for size, which in kinds]
    grows, tails = playback.expandable, state.tails
    for event in playback.events[state.done :] if state.done else playback.events:
        if event > 0:
            spots = bin_of[kind[event]]
            if spots:
                block = spots.pop(0) & _NUMBER
                free[block] = False
                block_of[event] = block
                continue
            size, which = kinds[kind[event]]
            bins, have = pools[which]
            index, last = bisect_left(have, size), len(have)
            while index < last and not (spots := bins[have[index]]):
                index += 1
            if index < last and spots:
                found = have[index]
                block = spots.pop(0) & _NUMBER
                free[block] = False
                if not spots and found not in asked:
                    del bins[found], have[index]
            elif grows:
                block = _at_the_end(
                    state, which, size, _LARGE_SEGMENT if which >= streams else SMALL_SEGMENT
                )
                found = size_of[block]
                if state.reserved > state.most:
                    state.most = state.reserved
                    if which >= streams or not state.at_most:
                        state.at_most = event
            else:
                found = _segment(size)
                if state.reserved + found > limit:
                    if pause:
                        state.done = playback.events.index(event, state.done)
                        return False
                    _give_back(state)
                    if state.reserved + found > limit:
                        state.oom = event
                        return False
                block = _append(state, found, state.fresh)
                state.fresh += found + 1
                state.reserved += found
                if state.reserved > state.most:
                    state.most = state.reserved
                    if which >= streams or not state.at_most:
                        state.at_most = event
            left = found - size
            if left > SMALL or (left and (grows or which < streams)):
                rest, at = len(size_of), (spot_of[block] >> _AT) + size
                spot = at << _AT | rest
                size_of[block] = size
                size_of.append(left)
                spot_of.append(spot)
                before.append(block)
                after.append(then := after[block])
                free.append(True)
                before[then] = after[block] = rest
                if grows and not then:
                    tails[which] = rest
                elif left in bins:
                    insort(bins[left], spot)
                else:
                    bins[left] = [spot]
                    insort(have, left)
            elif left:
                whole[event] = found
            block_of[event] = block
        else:
            block = block_of[-event]
            then, first = after[block], before[block]
            if not (free[then] or free[first] or -event in whole):
                free[block] = True
                insort(bin_of[kind[-event]], spot_of[block])
                continue
            which = kinds[kind[-event]][1]
            bins, have = pools[which]
            size = size_of[block]
            if then and free[then]:
                free[then] = False
                other = size_of[then]
                if after[then] or not grows:
                    spots = bins[other]
                    del spots[bisect_left(spots, spot_of[then])]
                    if not spots and other not in asked:
                        del bins[other], have[bisect_left(have, other)]
                size += other
                after[block] = then = after[then]
                before[then] = block
            if first and free[first]:
                other = size_of[first]
                spots = bins[other]
                del spots[bisect_left(spots, spot_of[first])]
                if not spots and other not in asked:
                    del bins[other], have[bisect_left(have, other)]
                size += other
                after[first] = then
                before[then] = block = first
            size_of[block] = size
            free[block] = True
            if grows and not then:
                tails[which] = block
            elif size in bins:
                insort(bins[size], spot_of[block])
            else:
                bins[size] = [spot_of[block]]
                insort(have, size)
    state.done = len(playback.events)
    return True


def _at_the_end(state: _State, which: int, size: int, page: int) -> int:
    """The last block of a pool, taken out, with at least ``size`` after mapping pages."""
    last = state.tails[which]
    if last and state.free[last]:
        lacks = size - state.size[last]
        mapped = -(-lacks // page) * page if lacks > 0 else 0
        state.size[last] += mapped
        state.free[last] = False
        state.reserved += mapped
        return last
    mapped = -(-size // page) * page
    end = (state.spot[last] >> _AT) + state.size[last] if last else 0
    block = _append(state, mapped, end)
    state.free[block] = False
    state.before[block] = last
    if last:
        state.after[last] = block
    state.tails[which] = block
    state.reserved += mapped
    return block


def _append(state: _State, size: int, at: int) -> int:
    """The number of a new segment's one block."""
    block = len(state.size)
    state.size.append(size)
    state.spot.append(at << _AT | block)
    state.before.append(0)
    state.after.append(0)
    state.free.append(False)
    return block


def _give_back(state: _State) -> None:
    """Drop the segments that are free from end to end."""
    state.retries += 1
    for bins, _ in state.pools:
        for size, spots in bins.items():
            kept = [
                spot
                for spot in spots
                if state.before[spot & _NUMBER] or state.after[spot & _NUMBER]
            ]
            state.reserved -= size * (len(spots) - len(kept))
            spots[:] = kept


def _segment(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    return _LARGE_SEGMENT if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE
