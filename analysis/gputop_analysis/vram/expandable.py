"""Expandable segments: one range of addresses a pool, to which memory is mapped page by page.

After ``find_expandable_block``, ``map_block`` and ``unmap_block`` of
``c10/cuda/CUDACachingAllocator.cpp``. Sizes and addresses count units of 512 bytes. The range is
taken as endless; PyTorch opens a second one after 9/8 of the GPU.
"""

from __future__ import annotations

from gputop_analysis.vram.blocks import FreeBlocks


def grow(pool: FreeBlocks, size: int, room: int) -> tuple[int | None, int]:
    """Map pages for a free block of ``size``; where it is (None: no room), how much was mapped."""
    at = _candidate(pool, size)
    mapped = 0
    while (have := pool.sizes.get(at, 0)) < size:
        hole = at + have
        wanted = min(-(-(size - have) // pool.page) * pool.page, pool.unmapped[hole])
        if mapped + wanted > room:
            return None, mapped
        at = _map(pool, hole, wanted)
        mapped += wanted
    return at, mapped


def take_mapped(pool: FreeBlocks, at: int, size: int) -> None:
    """Have a range of a recording mapped: out of the holes, without making it free.

    The first range of a pool moves the pool there, since its own addresses are made up.
    """
    if not pool.sizes and not pool.segments and len(pool.unmapped) == 1 and pool.base < at:
        (length,) = pool.unmapped.values()
        pool.base = at
        pool.unmapped = {at: length}
    for hole, length in pool.unmapped.items():
        if hole <= at and at + size <= hole + length:
            break
    else:
        return
    del pool.unmapped[hole]
    if at > hole:
        pool.unmapped[hole] = at - hole
    if hole + length > at + size:
        pool.unmapped[at + size] = hole + length - at - size


def unmap_free(pool: FreeBlocks) -> int:
    """Take the memory from all free pages; how much that was."""
    released, page, base = 0, pool.page, pool.base
    for at in sorted(pool.sizes):
        size = pool.sizes[at]
        first = base + -(-(at - base) // page) * page
        last = base + (at + size - base) // page * page
        if first >= last:
            continue
        pool.drop(at)
        if first > at:
            pool.add(at, first - at)
        if last < at + size:
            pool.add(last, at + size - last)
        _hole(pool, first, last - first)
        released += last - first
    return released


def _candidate(pool: FreeBlocks, size: int) -> int:
    """The lowest hole, or free block before it, whence holes and free blocks span ``size``."""
    for hole in sorted(pool.unmapped):
        start = at = pool.ends.get(hole, hole)
        while at - start < size:
            step = pool.sizes.get(at) or pool.unmapped.get(at)
            if not step:
                break
            at += step
        else:
            return start
    raise AssertionError("the last hole is endless")


def _map(pool: FreeBlocks, hole: int, size: int) -> int:
    """Map the first ``size`` of a hole; the address of the free block that it becomes part of."""
    remaining = pool.unmapped.pop(hole) - size
    if remaining:
        pool.unmapped[hole + size] = remaining
    at, _ = pool.release(hole, size)
    return at


def _hole(pool: FreeBlocks, at: int, size: int) -> None:
    """A hole, merged with those that it touches."""
    size += pool.unmapped.pop(at + size, 0)
    for before, length in pool.unmapped.items():
        if before + length == at:
            pool.unmapped[before] = length + size
            return
    pool.unmapped[at] = size
