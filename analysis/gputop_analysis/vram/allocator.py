"""The CUDA caching allocator as PyTorch has it, on sizes alone: what it reserves for a sequence of
requests.

The rules are those of PyTorch's ``c10/cuda/CUDACachingAllocator.cpp`` (``malloc``,
``get_free_block``, ``alloc_block``, ``free_block``, ``release_cached_blocks``,
``try_allocate_expandable_block``). What it cannot know: the addresses that ``cudaMalloc`` gives,
taken to rise from segment to segment; they decide between free blocks of the same size only.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from gputop_analysis.vram.blocks import (
    ADDRESS,
    MIN_LARGE,
    NEVER,
    ROUND_LARGE,
    SHIFT,
    SMALL,
    SMALL_SEGMENT,
    UNIT,
    FreeBlocks,
)
from gputop_analysis.vram.conf import DEFAULT, AllocatorConf
from gputop_analysis.vram.expandable import grow, take_mapped, unmap_free

_ARENA = 1 << 36


class OutOfMemoryError(MemoryError):
    """No segment could be had, also after the cached ones were given back."""


class Block(NamedTuple):
    """An allocated block; ``at`` and ``size`` in units of 512 bytes."""

    pool: FreeBlocks
    at: int
    size: int
    requested: int


class Stats(NamedTuple):
    """Bytes, as ``torch.cuda.memory_stats()`` names them."""

    allocated: int
    requested: int
    reserved: int
    inactive_split: int
    """Free, but in a segment in use, so that it cannot be given back: fragmentation."""
    peak_allocated: int
    peak_reserved: int
    allocated_at_peak_reserved: int
    segments: int
    retries: int
    """How often everything cached was given back because the GPU was full."""
    ooms: int


class Allocator:
    """One GPU's allocator.

    Args:
        conf: options, see ``conf.parse``.
        capacity: bytes that segments may take in all; None: no limit.
    """

    def __init__(self, conf: AllocatorConf = DEFAULT, capacity: int | None = None) -> None:
        self.conf = conf
        fraction = conf.memory_fraction or 1.0
        if capacity is None:
            self.capacity = NEVER
        else:
            self.capacity = int(capacity * fraction) // UNIT
        self.pools: dict[tuple[int, bool], FreeBlocks] = {}
        self.allocated = self.requested = self.reserved = 0
        self.peak_allocated = self.peak_reserved = self.allocated_at_peak_reserved = 0
        self.retries = self.ooms = 0
        self._plain = conf.roundup_power2_divisions == DEFAULT.roundup_power2_divisions
        if conf.max_split_size is None:
            self._oversize = NEVER
        else:
            self._oversize = conf.max_split_size // UNIT
        self._large_least = 1 if conf.expandable_segments else SMALL + 1
        self._large_segment = conf.large_segment // UNIT
        self._collects = conf.memory_fraction is not None and conf.garbage_collection_threshold > 0
        self._searches = 0
        self._freed_at: dict[int, int] = {}
        self.next_address = 0
        """Where the driver gives the next segment, in units; set by a replay to the recorded."""

    def malloc(self, nbytes: int, stream: int = 0) -> Block:
        """A block of at least ``nbytes``.

        Raises:
            OutOfMemoryError: not within the capacity.
        """
        if self._plain:
            size = (nbytes + 511) >> 9 or 1
        else:
            size = self.conf.round_size(nbytes) >> 9
        small = size <= SMALL
        pool = self.pools.get((stream, small)) or self._pool(stream, small)
        best_fit = self._best_fit(pool, size)
        at = self._new(pool, size, small) if best_fit is None else best_fit
        block_size = pool.sizes[at]
        if small:
            min_remainder = 1
        elif size < self._oversize:
            min_remainder = self._large_least
        else:
            min_remainder = NEVER
        taken = pool.cut(at, block_size, size, min_remainder)
        self.allocated += taken
        self.requested += nbytes
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        if best_fit is None and self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
            if not small or not self.allocated_at_peak_reserved:
                # a small segment adds next to nothing, at any time
                self.allocated_at_peak_reserved = self.allocated
        return Block(pool, at, taken, nbytes)

    def free(self, block: Block) -> None:
        """Give a block back to the cache."""
        self.allocated -= block.size
        self.requested -= block.requested
        at, _ = block.pool.release(block.at, block.size)
        if self._collects:
            self._freed_at[at] = self._searches

    def empty_cache(self) -> None:
        """Give wholly free segments back to the driver, as ``torch.cuda.empty_cache()`` does."""
        for pool in self.pools.values():
            for at in pool.whole():
                self._release(pool, at)
            if self.conf.expandable_segments:
                self.reserved -= unmap_free(pool)

    def place(
        self, at: int, size: int, stream: int, small: bool, blocks: list[tuple[int, int]]
    ) -> FreeBlocks:
        """Put a segment where it lay, with blocks in use; its pool.

        Args:
            at: its address; this and all sizes in units of 512 bytes.
            size: of the segment.
            stream: that it belongs to.
            small: whether it is of the small pool.
            blocks: (address, size) of those in use, by address.
        """
        pool = self.pools.get((stream, small)) or self._pool(stream, small)
        if self.conf.expandable_segments:
            take_mapped(pool, at, size)
        else:
            pool.segments[at] = size
        free = at
        for start, units in [*blocks, (at + size, 0)]:
            if start > free:
                pool.release(free, start - free)
            free = start + units
        self.allocated += sum(units for _, units in blocks)
        self.reserved += size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return pool

    def give_back(self, at: int, size: int) -> bool:
        """Give a segment back to the driver, at ``at`` or of its size; whether one was free."""
        for pool in self.pools.values():
            if pool.segments.get(at) == size == pool.sizes.get(at):
                self._release(pool, at)
                return True
        for pool in self.pools.values():
            for other in pool.whole():
                if pool.segments[other] == size:
                    self._release(pool, other)
                    return True
        return False

    @property
    def stats(self) -> Stats:
        """All counters now."""
        free = sum(
            sum(pool.sizes.values()) - sum(map(pool.segments.__getitem__, pool.whole()))
            for pool in self._all()
        )
        return Stats(
            self.allocated * UNIT,
            self.requested,
            self.reserved * UNIT,
            0 if self.conf.expandable_segments else free * UNIT,
            self.peak_allocated * UNIT,
            self.peak_reserved * UNIT,
            self.allocated_at_peak_reserved * UNIT,
            sum(len(pool.segments) for pool in self._all()),
            self.retries,
            self.ooms,
        )

    def _all(self) -> list[FreeBlocks]:
        return list(self.pools.values())

    def _pool(self, stream: int, small: bool) -> FreeBlocks:
        pool = self.pools[stream, small] = FreeBlocks(
            SMALL_SEGMENT if small else self._large_segment, self.next_address
        )
        if self.conf.expandable_segments:
            pool.unmapped[self.next_address] = _ARENA
            self.next_address += 2 * _ARENA
        return pool

    def _best_fit(self, pool: FreeBlocks, size: int) -> int | None:
        """Where the smallest free block that fits lies; an oversize one serves near ones only."""
        self._searches += 1
        keys = pool.keys
        index = bisect_left(keys, size << SHIFT)
        if index == len(keys):
            return None
        key = keys[index]
        block_size, at = key >> SHIFT, key & ADDRESS
        if pool.unmapped and at + block_size in pool.unmapped:
            at = _not_at_the_edge(pool, index)
        if size < self._oversize <= block_size:
            return None
        if size >= self._oversize and block_size >= size + self.conf.max_non_split_rounding // UNIT:
            return None
        return at

    def _new(self, pool: FreeBlocks, size: int, small: bool) -> int:
        """A new segment, after giving back what is cached where the GPU is full."""
        if self._collects:
            self._collect()
        at = self._segment(pool, size, small)
        if at is None and self._release_oversize(pool, size):
            at = self._segment(pool, size, small)
        if at is None:
            self.empty_cache()
            self.retries += 1
            at = self._segment(pool, size, small)
        if at is None:
            self.ooms += 1
            raise OutOfMemoryError
        return at

    def _segment(self, pool: FreeBlocks, size: int, small: bool) -> int | None:
        if self.conf.expandable_segments:
            at, mapped = grow(pool, size, self.capacity - self.reserved)
            self.reserved += mapped
            return at
        segment_size = self._segment_size(size, small)
        if self.reserved + segment_size > self.capacity:
            return None
        at = self.next_address
        self.next_address += segment_size + 1
        self.reserved += segment_size
        pool.segments[at] = segment_size
        pool.add(at, segment_size)
        return at

    def _segment_size(self, size: int, small: bool) -> int:
        if small:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self._large_segment
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def _release(self, pool: FreeBlocks, at: int) -> int:
        size = pool.drop(at)
        del pool.segments[at]
        self.reserved -= size
        return size

    def _release_oversize(self, pool: FreeBlocks, size: int) -> bool:
        """Give back oversize blocks of the pool, the smallest that is enough or largest first."""
        if self._oversize == NEVER:
            return False
        wanted = max(size, self._oversize)
        index = bisect_left(pool.keys, wanted << SHIFT)
        if index < len(pool.keys):
            self._release(pool, pool.keys[index] & ADDRESS)
            return True
        released = 0
        while released < wanted and pool.keys and pool.keys[-1] >> SHIFT >= self._oversize:
            released += self._release(pool, pool.keys[-1] & ADDRESS)
        return released >= wanted

    def _collect(self) -> None:
        """Free cached large segments unused for longer than the mean, until enough is free."""
        excess = self.reserved - int(self.conf.garbage_collection_threshold * self.capacity)
        while excess > 0:
            ages = {
                (pool, at): self._searches - self._freed_at.get(at, 0)
                for (_, small), pool in self.pools.items()
                if not small
                for at in pool.whole()
            }
            if not ages:
                return
            mean = sum(ages.values()) / len(ages)
            for (pool, at), age in ages.items():
                if age >= mean:
                    excess -= self._release(pool, at)


def _not_at_the_edge(pool: FreeBlocks, index: int) -> int:
    """Best fit among expandable blocks, one that can grow counting with all of that."""

    def reach(key: int) -> int:
        size, at = key >> SHIFT, key & ADDRESS
        return size + pool.unmapped.get(at + size, 0)

    keys = pool.keys
    while index + 1 < len(keys) and reach(keys[index + 1]) < reach(keys[index]):
        index += 1
    return keys[index] & ADDRESS
