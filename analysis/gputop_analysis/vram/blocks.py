"""The free blocks of one pool of the caching allocator: best fit, splitting, coalescing.

Addresses and sizes count units of 512 bytes, the allocator's grain. A pool belongs to one stream
and holds either the small or the large blocks, since no block ever moves between them. Only free
blocks are kept: they alone are searched and merged. Two segments never touch, so that blocks merge
within a segment only.
"""

from __future__ import annotations

from bisect import bisect_left, insort

UNIT = 512
SMALL = (1 << 20) // UNIT
"""Requests up to this come from the small pool; a large block with more left is split."""
SMALL_SEGMENT = (2 << 20) // UNIT
ROUND_LARGE = (2 << 20) // UNIT
MIN_LARGE = (10 << 20) // UNIT
"""Requests from here on get a segment of their own size, rounded up to ``ROUND_LARGE``."""
NEVER = 1 << 60
SHIFT = 44
ADDRESS = (1 << SHIFT) - 1


class FreeBlocks:
    """Free blocks by (size, address), by their start, and by their end."""

    __slots__ = ("base", "ends", "keys", "page", "segments", "sizes", "unmapped")

    def __init__(self, page: int, base: int = 0) -> None:
        self.page = page
        """Expandable segments: how much memory is mapped at a time."""
        self.base = base
        """Expandable segments: begin of the range from which pages are counted."""
        self.keys: list[int] = []
        """``size << SHIFT | address``, sorted: the first of a size or more is the best fit."""
        self.sizes: dict[int, int] = {}
        """Size by address."""
        self.ends: dict[int, int] = {}
        """Address by the address after the block."""
        self.segments: dict[int, int] = {}
        """Native segments: size by address."""
        self.unmapped: dict[int, int] = {}
        """Expandable segments: size of the holes without memory, by address."""

    def add(self, at: int, size: int) -> None:
        """A free block that touches no other one."""
        self.sizes[at] = size
        self.ends[at + size] = at
        insort(self.keys, size << SHIFT | at)

    def drop(self, at: int) -> int:
        """Take a free block out; its size."""
        size = self.sizes.pop(at)
        del self.ends[at + size]
        keys = self.keys
        del keys[bisect_left(keys, size << SHIFT | at)]
        return size

    def release(self, at: int, size: int) -> tuple[int, int]:
        """Give a block back, merged with its free neighbours; its place now and its size."""
        sizes, ends, keys = self.sizes, self.ends, self.keys
        end = at + size
        if end in sizes:
            size += self.drop(end)
        if at in ends:
            before = ends[at]
            size += self.drop(before)
            at = before
        sizes[at] = size
        ends[at + size] = at
        insort(keys, size << SHIFT | at)
        return at, size

    def cut(self, at: int, size: int, wanted: int, least: int) -> int:
        """Take a block at ``at``, which is split if ``least`` or more is left; the size taken."""
        remainder = size - wanted
        if remainder < least:
            self.drop(at)
            return size
        del self.sizes[at]
        del self.keys[bisect_left(self.keys, size << SHIFT | at)]
        remainder_at = at + wanted
        self.sizes[remainder_at] = remainder
        self.ends[at + size] = remainder_at
        insort(self.keys, remainder << SHIFT | remainder_at)
        return wanted

    def whole(self) -> list[int]:
        """Addresses of the segments that are free from end to end."""
        return [at for at, size in self.segments.items() if self.sizes.get(at) == size]
