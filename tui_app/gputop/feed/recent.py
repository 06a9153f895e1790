"""The recent steps of each rank in columns: what the rank grid draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from gputop.feed.snapshot import RecentSteps
from gputop.feed.window import HORIZON_NS
from gputop_probes.record.reader import RunRecord, Table

MAX_COLUMNS = 200
MAX_RECORDS = 20_000
"""Records read a rank at most: bounds the work whatever the run."""
_WIDTHS = (1, 2, 5)


def recent_steps(record: RunRecord, previous: RecentSteps | None = None) -> RecentSteps:
    """Columns over the last two minutes of steps of all ranks.

    Args:
        record: the record, or a cut of it.
        previous: the last result; its column width is kept while it still fits, so that the picture
            does not rescale.
    """
    tails = {rank: tail for rank in record.ranks() if len(tail := _tail(record.steps(rank)))}
    if not tails:
        return RecentSteps()
    last = max(int(t["step"][-1]) for t in tails.values())
    first = min(int(t["step"][0]) - int(t["n_steps"][0]) + 1 for t in tails.values())
    per_column = _steps_per_column(last - first + 1, previous)
    start = max(first // per_column, last // per_column - MAX_COLUMNS + 1)
    columns = last // per_column - start + 1
    cells = np.empty((len(tails), columns))
    for row, tail in zip(cells, tails.values(), strict=True):
        index = tail["step"].astype(np.int64) // per_column - start
        shown = int(np.searchsorted(index, 0))
        steps = np.bincount(index[shown:], tail["n_steps"][shown:], columns)
        row[:] = _divide(np.bincount(index[shown:], tail["wall_ns"][shown:], columns), steps)
    return RecentSteps(
        steps_per_column=per_column,
        first_step=start * per_column,
        rank_wall_ms=dict(zip(tails, map(tuple, cells.tolist()), strict=True)),
        median_ms=float(np.nanmedian(cells)),
    )


def _tail(steps: Table) -> Table:
    """The last attempt's records within the horizon."""
    tail = np.asarray(steps[-MAX_RECORDS:])
    if not len(tail):
        return tail
    tail = tail[int(np.searchsorted(tail["t_end_ns"], tail["t_end_ns"][-1] - HORIZON_NS)) :]
    restarts = np.flatnonzero(np.diff(tail["step"].astype(np.int64)) < 0)
    return tail[restarts[-1] + 1 :] if len(restarts) else tail


def _steps_per_column(steps: int, previous: RecentSteps | None) -> int:
    needed = steps / MAX_COLUMNS
    if (
        previous is not None
        and previous.rank_wall_ms
        and needed <= previous.steps_per_column <= 4 * needed + 1
    ):
        return previous.steps_per_column
    scale = 1
    while True:
        for width in _WIDTHS:
            if width * scale >= needed:
                return width * scale
        scale *= 10


def _divide(sums_ns: Any, counts: Any) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, sums_ns / 1e6 / counts, np.nan)
