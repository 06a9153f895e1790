"""The caching allocator without options, or with expandable segments, in one loop: far faster than
``allocator``.

Written for speed, which is why it repeats the rules of ``allocator`` and ``blocks``: an object a
block costs more than the work. Blocks are numbers, lists say what lies before and after
each, and free ones lie in bins by their size. A training step asks for the same few sizes again and
again: each storage knows the bin of its size, where two of three requests find a block and three of
four blocks go back to. Only what is left calls a method.

With expandable segments a pool is one range of addresses. A free block at its end serves only what
fits in no other one (``find_free_block`` of ``CUDACachingAllocator.cpp`` passes it over, since it
can still grow), so it is in no bin.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
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
    """Spots by size, lowest address first; those of asked-for sizes stay when empty."""
    sizes: list[int]
    """The keys of ``bins``, sorted."""

    def smallest_with(self, size: int) -> int:
        """The least size of a free block that is at least ``size``; 0: no block is."""
        for index in range(bisect_left(self.sizes, size), len(self.sizes)):
            if self.bins[self.sizes[index]]:
                return self.sizes[index]
        return 0

    def add(self, size: int, spot: int) -> None:
        if size in self.bins:
            insort(self.bins[size], spot)
        else:
            self.bins[size] = [spot]
            insort(self.sizes, size)

    def drop_bin(self, size: int) -> None:
        del self.bins[size], self.sizes[bisect_left(self.sizes, size)]


@dataclass(slots=True)
class _State:
    """How things stand after some events; blocks are indices of lists, 0 stands for none."""

    playback: Playback
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
    fresh: int = 0
    """Address of the next segment."""
    reserved: int = 0
    most: int = 0
    at_most: int = 0
    retries: int = 0
    oom: int = 0
    tails: list[int] = field(default_factory=list)
    """Expandable segments: the last block of each pool."""

    def play(self, limit: int) -> None:
        """All events, or those before one that runs out of memory: segments take at most ``limit``."""
        playback = self.playback
        kind_of = playback.kind
        bin_of = [self.pools[pool].bins[size] for size, pool in playback.kinds]
        block_of, larger, spot_of = self.block, self.whole, self.spot
        before, after, free = self.before, self.after, self.free
        for event in playback.events:
            if event > 0:
                spots = bin_of[kind_of[event]]
                if spots:
                    block_of[event] = block = spots.pop(0) & _NUMBER
                    free[block] = False
                elif not self._allocate(event, limit):
                    return
            else:
                block = block_of[-event]
                if free[after[block]] or free[before[block]] or -event in larger:
                    self._release(-event)
                else:
                    free[block] = True
                    insort(bin_of[kind_of[-event]], spot_of[block])

    def _allocate(self, storage: int, limit: int) -> bool:
        """A larger block than asked for, or one of a new segment; False: there is no room."""
        playback = self.playback
        size, pool = playback.kinds[playback.kind[storage]]
        block = self._take(pool, size)
        if not block and playback.expandable:
            block = self._at_the_end(pool, size)
            self._note_reserved(storage, pool)
        elif not block:
            segment = _segment(size)
            if self.reserved + segment > limit:
                self._give_back()
                if self.reserved + segment > limit:
                    self.oom = storage
                    return False
            block = self._append(segment, self.fresh)
            self.fresh += segment + 1
            self.reserved += segment
            self._note_reserved(storage, pool)
        self.block[storage] = block
        surplus = self.size[block] - size
        splits = playback.expandable or pool < playback.streams
        if surplus > SMALL or (surplus and splits):
            self._split(block, pool, size)
        elif surplus:
            self.whole[storage] = self.size[block]
        return True

    def _take(self, pool: int, size: int) -> int:
        """The free block that fits best, taken out; 0: none fits."""
        free_blocks = self.pools[pool]
        fitting = free_blocks.smallest_with(size)
        if not fitting:
            return 0
        spots = free_blocks.bins[fitting]
        block = spots.pop(0) & _NUMBER
        self.free[block] = False
        if not spots and fitting not in self.playback.asked:
            free_blocks.drop_bin(fitting)
        return block

    def _note_reserved(self, storage: int, pool: int) -> None:
        if self.reserved > self.most:
            self.most = self.reserved
            if pool >= self.playback.streams or not self.at_most:
                self.at_most = storage

    def _split(self, block: int, pool: int, size: int) -> None:
        """Keep ``size`` of a block; what is left becomes a free block after it."""
        following = self.after[block]
        surplus = self.size[block] - size
        self.size[block] = size
        remainder = self._append(surplus, (self.spot[block] >> _AT) + size)
        self.before[remainder] = block
        self.after[remainder] = following
        self.before[following] = self.after[block] = remainder
        self._set_free(remainder, pool)

    def _release(self, storage: int) -> None:
        """A block goes back and is merged with its free neighbours."""
        playback = self.playback
        pool = playback.kinds[playback.kind[storage]][1]
        block = self.block[storage]
        following, preceding = self.after[block], self.before[block]
        if following and self.free[following]:
            self.free[following] = False
            if self.after[following] or not playback.expandable:
                self._remove(following, pool)
            self.size[block] += self.size[following]
            self.after[block] = following = self.after[following]
            self.before[following] = block
        if preceding and self.free[preceding]:
            self._remove(preceding, pool)
            self.size[preceding] += self.size[block]
            self.after[preceding] = following
            self.before[following] = block = preceding
        self._set_free(block, pool)

    def _remove(self, block: int, pool: int) -> None:
        """A free block leaves its bin."""
        free_blocks, size = self.pools[pool], self.size[block]
        spots = free_blocks.bins[size]
        del spots[bisect_left(spots, self.spot[block])]
        if not spots and size not in self.playback.asked:
            free_blocks.drop_bin(size)

    def _set_free(self, block: int, pool: int) -> None:
        self.free[block] = True
        if self.playback.expandable and not self.after[block]:
            self.tails[pool] = block
        else:
            self.pools[pool].add(self.size[block], self.spot[block])

    def _at_the_end(self, pool: int, size: int) -> int:
        """The last block of a pool, taken out, with at least ``size`` after mapping pages."""
        if pool >= self.playback.streams:
            page = _LARGE_SEGMENT
        else:
            page = SMALL_SEGMENT
        last = self.tails[pool]
        if last and self.free[last]:
            lacks = max(size - self.size[last], 0)
            mapped = -(-lacks // page) * page
            self.size[last] += mapped
            self.free[last] = False
            self.reserved += mapped
            return last
        mapped = -(-size // page) * page
        end = (self.spot[last] >> _AT) + self.size[last] if last else 0
        block = self._append(mapped, end)
        self.before[block] = last
        if last:
            self.after[last] = block
        self.tails[pool] = block
        self.reserved += mapped
        return block

    def _append(self, size: int, address: int) -> int:
        """The number of a new block that is in use and stands alone."""
        block = len(self.size)
        self.size.append(size)
        self.spot.append(address << _AT | block)
        self.before.append(0)
        self.after.append(0)
        self.free.append(False)
        return block

    def _give_back(self) -> None:
        """Drop the segments that are free from end to end."""
        self.retries += 1
        for bins, _ in self.pools:
            for size, spots in bins.items():
                shared = [spot for spot in spots if self._has_neighbour(spot & _NUMBER)]
                self.reserved -= size * (len(spots) - len(shared))
                spots[:] = shared

    def _has_neighbour(self, block: int) -> bool:
        return bool(self.before[block] or self.after[block])


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

    def play(self, capacity: int | None = None) -> Played:
        """With segments that take at most ``capacity`` units; None: as many as they want."""
        state = self._start()
        state.play(NEVER if capacity is None else capacity)
        return Played(state.whole, state.most, state.at_most, state.retries, state.oom)

    def _start(self) -> _State:
        pools = [_Pool({}, []) for _ in range(2 * self.streams)]
        for size, pool in sorted(set(self.kinds)):
            pools[pool].bins[size] = []
            pools[pool].sizes.append(size)
        state = _State(self, pools, [0] * len(self.kind), tails=[0] * len(pools))
        # so that a block with no neighbour is released by `_release`
        state.free[0] = self.expandable
        return state


def _segment(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return _LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE
