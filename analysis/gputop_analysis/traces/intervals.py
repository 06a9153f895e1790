"""Exact arithmetic on sets of time intervals: int64 nanoseconds, half open, vectorised."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Points in time as sorted intervals that do not touch; ns, ``starts[n]`` and ``ends[n]``."""

    starts: Times
    ends: Times

    def length_before(self, t: Times) -> Times:
        """Nanoseconds of the set that lie before each of the times ``t[k]``."""
        done = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        index = np.searchsorted(self.starts, t, side="right")
        running = np.where(index > 0, index - 1, 0)
        if not len(self.starts):
            return np.zeros(len(t), np.int64)
        return np.where(
            index > 0, done[running] + np.minimum(t, self.ends[running]) - self.starts[running], 0
        )

    def length_in(self, starts: Times, ends: Times) -> Times:
        """Nanoseconds of the set that lie in each of the windows ``[starts[k], ends[k])``."""
        return self.length_before(ends) - self.length_before(starts)


def union(starts: Times, ends: Times) -> Intervals:
    """The union of any intervals, those of no length left out."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return Intervals(starts, ends)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(first)[1:] - 1, [len(starts) - 1]))
    return Intervals(starts[first], reach[last])


def merged(*sets: Intervals) -> Intervals:
    """The union of several sets."""
    return union(np.concatenate([s.starts for s in sets]), np.concatenate([s.ends for s in sets]))


def without(a: Intervals, b: Intervals) -> Intervals:
    """The points of ``a`` that are not in ``b``."""
    if not len(b.starts) or not len(a.starts):
        return a
    gaps = Intervals(
        np.concatenate(([a.starts[0]], b.ends)), np.concatenate((b.starts, [a.ends[-1]]))
    )
    keep = gaps.ends > gaps.starts
    return common(a, Intervals(gaps.starts[keep], gaps.ends[keep]))


def common(a: Intervals, b: Intervals) -> Intervals:
    """The points that lie in both."""
    edges = np.unique(np.concatenate((a.starts, a.ends, b.starts, b.ends)))
    if len(edges) < 2:
        return Intervals(edges[:0], edges[:0])
    low, high = edges[:-1], edges[1:]
    inside = (a.length_in(low, high) > 0) & (b.length_in(low, high) > 0)
    return union(low[inside], high[inside])


def self_times(starts: Times, ends: Times) -> Times:
    """Self time in ns of calls of one thread, each inside another or apart: its duration less that
    of the calls right inside it.

    The depth of a call is the number of calls that began before it and have not ended; its parent
    is the last one before it that is one less deep.
    """
    own_ns = np.zeros(len(starts), np.int64)
    rows = np.flatnonzero(ends > starts)
    order = rows[np.lexsort((-ends[rows], starts[rows]))]
    start, duration = starts[order], ends[order] - starts[order]
    depth = np.arange(len(order)) - np.searchsorted(np.sort(ends[order]), start, side="right")
    inside = np.zeros(len(order), np.int64)
    above = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        if len(above):
            parent = above[np.maximum(0, np.searchsorted(above, here) - 1)]
        else:
            parent = here
        np.add.at(inside, parent, duration[here])
        above = here
    own_ns[order] = np.maximum(0, duration - inside)
    return own_ns
