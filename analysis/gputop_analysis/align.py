"""Ranks side by side: the same steps of several ranks, although each rank folds its records on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.series import RankSeries

Array = npt.NDArray[Any]

MAX_BUCKETS = 20_000


@dataclass(frozen=True)
class Aligned:
    """Buckets of consecutive steps that every rank has, all of them steady."""

    ranks: tuple[int, ...]
    edges: Array
    """Bucket i holds the steps edges[i] <= step < edges[i + 1]."""
    keep: Array
    """Mask of the buckets that count."""
    series: tuple[RankSeries, ...]

    @property
    def bucket_steps(self) -> int:
        """Steps per bucket; 1 when nothing is folded."""
        return int(self.edges[1] - self.edges[0]) if len(self.edges) > 1 else 1

    def __len__(self) -> int:
        return int(self.keep.sum())

    def per_step_ms(self, column: str) -> Array:
        """Buckets x ranks: mean milliseconds per step of a ``*_ns`` column."""
        return self._per_step(column) / 1e6

    def per_step(self, column: str) -> Array:
        """Buckets x ranks: mean per step of any summed column."""
        return self._per_step(column)

    def _per_step(self, column: str) -> Array:
        columns = []
        for one in self.series:
            ends = one.steps[one.steady] + 1
            counts = one.n_steps[one.steady]
            total, steps = bucketed(ends - counts, ends, one.rows[column][one.steady], counts, self.edges)
            columns.append(total[self.keep] / np.maximum(steps[self.keep], 1e-9))
        return np.stack(columns, axis=1)


def align(series: list[RankSeries]) -> Aligned | None:
    """Bring ranks onto common buckets; None when they share no steady steps."""
    ends = [one.steps[one.steady] + 1 for one in series]
    if not series or any(len(e) < 2 for e in ends):
        return None
    starts = [e - one.n_steps[one.steady] for e, one in zip(ends, series, strict=True)]
    first, last = max(int(s[0]) for s in starts), min(int(e[-1]) for e in ends)
    size = max(int(np.quantile(e - s, 0.95)) for s, e in zip(starts, ends, strict=True))
    size = max(1, size, (last - first) // MAX_BUCKETS + 1 if last > first else 1)
    if last - first < 2 * size:
        return None
    edges = np.arange(first, last + 1, size)
    full = np.ones(len(edges) - 1, bool)
    for s, e in zip(starts, ends, strict=True):
        _, steps = bucketed(s, e, e - s, e - s, edges)
        full &= steps >= 0.999 * size
    keep = full.copy()
    keep[1:] &= full[:-1]  # what one rank's eval or checkpoint costs, the others wait for in their next step
    return Aligned(tuple(one.rank for one in series), edges, keep, tuple(series))


def bucketed(starts: Array, ends: Array, values: Array, counts: Array, edges: Array) -> tuple[Array, Array]:
    """Sums and step counts per bucket of records that span ``starts`` to ``ends``, spread evenly over their steps."""
    if len(ends) and edges[1] - edges[0] == 1 and (ends - starts == 1).all():
        return _scattered(starts, values, edges), _scattered(starts, counts, edges)
    at = np.empty(2 * len(ends), np.float64)
    at[0::2], at[1::2] = starts, ends
    return _differences(at, values, edges), _differences(at, counts, edges)


def _scattered(steps: Array, values: Array, edges: Array) -> Array:
    at = steps - edges[0]
    inside = (at >= 0) & (at < len(edges) - 1)
    return np.bincount(at[inside], weights=values[inside], minlength=len(edges) - 1)


def _differences(at: Array, values: Array, edges: Array) -> Array:
    cumulated = np.zeros(len(at))
    cumulated[1::2] = np.cumsum(values, dtype=np.float64)
    cumulated[2::2] = cumulated[1:-1:2]
    return np.diff(np.interp(edges, at, cumulated))
