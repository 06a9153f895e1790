"""Ranks side by side: the same steps of several ranks, each of which folds records on its own."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """Bucket i holds the steps edges[i] <= step < edges[i + 1], as the rank numbers them that has
    made none alone.
    """
    keep: Array
    """Mask of the buckets that count."""
    series: tuple[RankSeries, ...]
    offsets: tuple[int, ...] = ()
    """If each record is one step: of each rank the record that holds the first step. Else empty."""
    known: dict[str, Array] = field(default_factory=dict)
    """Columns that were asked for."""

    @property
    def bucket_steps(self) -> int:
        """Steps per bucket; 1 when nothing is folded."""
        if len(self.edges) > 1:
            return int(self.edges[1] - self.edges[0])
        return 1

    def __len__(self) -> int:
        return int(self.keep.sum())

    def per_step_ms(self, column: str) -> Array:
        """Buckets x ranks: mean milliseconds per step of a ``*_ns`` column."""
        return self.per_step(column) / 1e6

    def per_step(self, column: str) -> Array:
        """Buckets x ranks: mean per step of any summed column."""
        if column not in self.known:
            if self.offsets:
                self.known[column] = self._records(column)
            else:
                self.known[column] = self._per_step(column)
        return self.known[column]

    def _records(self, column: str) -> Array:
        ends = (offset + len(self.keep) for offset in self.offsets)
        parts = zip(self.series, self.offsets, ends, strict=True)
        return np.stack([series.rows[column][begin:end] for series, begin, end in parts], axis=1)[
            self.keep
        ]

    def _per_step(self, column: str) -> Array:
        columns = []
        for series in self.series:
            ends = series.steps[series.steady] + 1 - series.ahead
            counts = series.n_steps[series.steady]
            total, steps = bucketed(
                ends - counts, ends, series.rows[column][series.steady], counts, self.edges
            )
            columns.append(total[self.keep] / np.maximum(steps[self.keep], 1e-9))
        return np.stack(columns, axis=1)


def align(series: list[RankSeries]) -> Aligned | None:
    """Bring ranks onto common buckets; None when they share no steady steps."""
    if not series:
        return None
    if all(_is_unfolded(rank_series) for rank_series in series):
        return _align_unfolded(series)
    return _align_folded(series)


def _is_unfolded(rank_series: RankSeries) -> bool:
    """Whether each record is one step and none is missing."""
    rows = rank_series.rows
    if len(rows) < 2 or int(rows["step"][-1]) - int(rows["step"][0]) != len(rows) - 1:
        return False
    return bool((rows["n_steps"] == 1).all()) and rank_series.attempt_start == 0


def _align_unfolded(series: list[RankSeries]) -> Aligned | None:
    starts = [int(rank_series.rows["step"][0]) - rank_series.ahead for rank_series in series]
    first = max(starts)
    last = min(
        start + len(rank_series.rows) for start, rank_series in zip(starts, series, strict=True)
    )
    if last - first < 2:
        return None
    steady = [
        rank_series.steady[first - start : last - start]
        for start, rank_series in zip(starts, series, strict=True)
    ]
    if not all(mask.any() for mask in steady):
        return None
    full = np.logical_and.reduce(steady)
    begin = max(int(mask.argmax()) for mask in steady)  # past every rank's warm-up
    offsets = tuple(first + begin - start for start in starts)
    ranks = tuple(rank_series.rank for rank_series in series)
    return Aligned(
        ranks,
        np.arange(first + begin, last + 1),
        _after_quiet(full[begin:]),
        tuple(series),
        offsets,
    )


def _after_quiet(full: Array) -> Array:
    """The next step goes too: in it others wait for one rank's eval or checkpoint."""
    keep = full.copy()
    keep[1:] &= full[:-1]
    return keep


def _align_folded(series: list[RankSeries]) -> Aligned | None:
    ends = [rank_series.steps[rank_series.steady] + 1 - rank_series.ahead for rank_series in series]
    if not series or any(len(end) < 2 for end in ends):
        return None
    starts = [
        end - rank_series.n_steps[rank_series.steady]
        for end, rank_series in zip(ends, series, strict=True)
    ]
    first, last = max(int(begin[0]) for begin in starts), min(int(end[-1]) for end in ends)
    size = max(int(np.quantile(end - begin, 0.95)) for begin, end in zip(starts, ends, strict=True))
    size = max(1, size, (last - first) // MAX_BUCKETS + 1 if last > first else 1)
    if last - first < 2 * size:
        return None
    edges = np.arange(first, last + 1, size)
    full = np.ones(len(edges) - 1, bool)
    for begin, end in zip(starts, ends, strict=True):
        _, steps = bucketed(begin, end, end - begin, end - begin, edges)
        full &= steps >= 0.999 * size
    return Aligned(
        tuple(rank_series.rank for rank_series in series), edges, _after_quiet(full), tuple(series)
    )


def bucketed(
    starts: Array, ends: Array, values: Array, counts: Array, edges: Array
) -> tuple[Array, Array]:
    """Sums and step counts per bucket of records that span ``starts`` to ``ends``, spread evenly
    over their steps.
    """
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
