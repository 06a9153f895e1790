"""The caching allocator without options in one loop, three times as fast as ``allocator``.

Written for speed, which is why it repeats the rules of ``allocator`` and ``blocks``: a method call for each event costs
more than the work. The tests play random sequences through both.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from gputop_analysis.vram.blocks import ADDRESS, MIN_LARGE, NEVER, ROUND_LARGE, SHIFT, SMALL, SMALL_SEGMENT, UNIT
from gputop_analysis.vram.conf import LARGE_SEGMENT

_LARGE_SEGMENT = LARGE_SEGMENT // UNIT


class Played(NamedTuple):
    """Sizes in units of 512 bytes."""

    taken: list[int]
    """What each storage got."""
    reserved: int
    """The most."""
    at_most: int
    """The storage for which the segment was made with which the most was reserved; 0: none."""
    retries: int
    """How often everything cached was given back because the capacity was reached."""
    oom: int
    """The storage for which there was no memory, after which nothing was played; 0: none."""


def play(sizes: list[int], streams: list[int], events: list[int], capacity: int | None = None) -> Played:
    """Play events on storages.

    Args:
        sizes: of each storage, in units of 512 bytes, at least 1; index 0 is a dummy.
        streams: of each storage, counted from 0.
        events: ``i`` allocates the storage ``i``, ``-i`` frees it.
        capacity: what segments may take, in units; None: no limit.
    """
    limit = NEVER if capacity is None else capacity
    count = max(streams, default=0) + 1
    # For each stream the keys (size << SHIFT | address) of its free small blocks, then of its large ones.
    pools: list[list[int]] = [[] for _ in range(2 * count)]
    pool_of = [stream if size <= SMALL else stream + count for size, stream in zip(sizes, streams, strict=True)]
    free_size: dict[int, int] = {}
    free_ending: dict[int, int] = {}
    address, taken = [0] * len(sizes), [0] * len(sizes)
    segments: dict[int, tuple[int, list[int]]] = {}
    fresh = reserved = most = at_most = retries = 0
    for event in events:
        if event > 0:
            size, which = sizes[event], pool_of[event]
            keys = pools[which]
            index = bisect_left(keys, size << SHIFT)
            if index < len(keys):
                key = keys.pop(index)
                found, at = key >> SHIFT, key & ADDRESS
                del free_size[at]
            else:
                found, at = _segment(size), fresh
                if reserved + found > limit:
                    reserved -= _give_back(segments, free_size, free_ending)
                    retries += 1
                    if reserved + found > limit:
                        return Played(taken, most, at_most, retries, event)
                segments[at] = found, keys
                fresh += found + 1
                reserved += found
                if reserved > most:
                    most, at_most = reserved, event
                free_ending[at + found] = at
            left = found - size
            if left > SMALL or (left and which < count):
                rest = at + size
                free_size[rest] = left
                free_ending[at + found] = rest
                insort(keys, left << SHIFT | rest)
                taken[event] = size
            else:
                del free_ending[at + found]
                taken[event] = found
            address[event] = at
        else:
            at, size, keys = address[-event], taken[-event], pools[pool_of[-event]]
            after = free_size.pop(at + size, 0)
            if after:
                del keys[bisect_left(keys, after << SHIFT | at + size)]
                size += after
            if at in free_ending:
                before = free_ending.pop(at)
                length = free_size[before]
                del keys[bisect_left(keys, length << SHIFT | before)]
                at = before
                size += length
            free_size[at] = size
            free_ending[at + size] = at
            insort(keys, size << SHIFT | at)
    return Played(taken, most, at_most, retries, 0)


def _give_back(
    segments: dict[int, tuple[int, list[int]]], free_size: dict[int, int], free_ending: dict[int, int]
) -> int:
    """Drop the segments that are free from end to end; their size."""
    idle = [(at, size, keys) for at, (size, keys) in segments.items() if free_size.get(at) == size]
    for at, size, keys in idle:
        del segments[at], free_size[at], free_ending[at + size]
        del keys[bisect_left(keys, size << SHIFT | at)]
    return sum(size for _, size, _ in idle)


def _segment(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    return _LARGE_SEGMENT if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE
