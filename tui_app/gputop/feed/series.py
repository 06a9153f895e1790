"""Columns of a record as curves of a few hundred points, in which no spike is lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from gputop.feed.plots import Columns, PlotLine
from gputop_agent.wire import PHASES
from gputop_analysis.view import Array, RunView

BINS = 240
RANKS_AT_MOST = 16
"""Ranks that a mean over all of them is taken from."""


def extremes(
    steps: Array, values: Array, bins: int = BINS
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Each bin's smallest and largest value in the order they come, and the newest value."""
    keep = np.isfinite(values)
    steps, values = steps[keep].astype(float), values[keep].astype(float)
    if len(values) <= 2 * bins:
        return tuple(steps.tolist()), tuple(values.tolist())
    picked: list[int] = []
    edges = np.linspace(0, len(values), bins + 1).astype(int)
    for start, end in pairwise(edges.tolist()):
        part = values[start:end]
        picked += sorted({start + int(part.argmin()), start + int(part.argmax())})
    if picked[-1] != len(values) - 1:
        picked.append(len(values) - 1)
    return tuple(steps[picked].tolist()), tuple(values[picked].tolist())


def line(
    view: RunView,
    rank: int,
    name: str,
    values: Callable[[Array, Array], Array],
    style: str = "allocated",
) -> PlotLine:
    """A value a step of a rank's last attempt; ``values`` gets the rows and their steps."""
    series = view.per_rank[rank]
    rows, counts = series.rows[series.attempt_start :], series.n_steps[series.attempt_start :]
    rows, counts = rows[_usable(rows)], counts[_usable(rows)]
    steps, shown = extremes(rows["step"].astype(float), values(rows, counts))
    return PlotLine(name, steps, shown, style)


def _usable(rows: Array) -> Array:
    """All but a process's first step, which is set-up, where there is more."""
    usable = rows["step"].astype(np.int64) - rows["n_steps"] >= 0
    return usable if usable.any() else np.ones(len(rows), bool)


def columns(
    view: RunView, rank: int | None, title: str, focus: tuple[str, ...], count: int = 160
) -> Columns | None:
    """Stacked phases of one rank, or the mean over (some of) all ranks; None without steps."""
    if rank in view.per_rank:
        ranks = [rank]
    else:
        ranks = view.ranks[:: max(1, len(view.ranks) // RANKS_AT_MOST)]
    tables = []
    for rank_ in ranks:
        series = view.per_rank[rank_]
        rows = series.rows[series.attempt_start :]
        tables.append(rows[_usable(rows)])
    tables = [rows for rows in tables if len(rows)]
    if not tables:
        return None
    first = min(int(rows["step"][0]) for rows in tables)
    last = max(int(rows["step"][-1]) for rows in tables)
    per_column = max(1, -(-(last - first + 1) // count))
    used = (last - first) // per_column + 1
    sums, steps = np.zeros((len(PHASES), used)), np.zeros(used)
    for rows in tables:
        index = np.maximum(rows["step"].astype(np.int64) - first, 0) // per_column
        steps += np.bincount(index, rows["n_steps"], used)
        for y, phase in enumerate(PHASES):
            sums[y] += np.bincount(index, rows[f"{phase}_ns"], used)
    filled = steps > 0
    means = (sums[:, filled] / 1e6 / steps[filled]).T
    return Columns(
        title, first, last, tuple(tuple(map(float, column)) for column in means.tolist()), focus
    )


def trend_line(line: PlotLine) -> PlotLine | None:
    """The Theil-Sen line of eight windows' minima, which judges a leak; None: too short."""
    from gputop_analysis.stats import theil_sen

    if len(line.values) < 24:
        return None
    parts = np.array_split(np.arange(len(line.values)), 8)
    x = np.array([np.mean([line.steps[i] for i in part]) for part in parts])
    y = np.array([min(line.values[i] for i in part) for part in parts])
    slope = theil_sen(x, y)
    middle = float(np.median(y - slope * x))
    ends = (line.steps[0], line.steps[-1])
    return PlotLine(
        "trend of the minima", ends, tuple(middle + slope * step for step in ends), "high"
    )
