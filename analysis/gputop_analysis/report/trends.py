"""The few series that every form of the report draws, over the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gputop_analysis.series import thinned
from gputop_analysis.view import Array, RunView

GIB = 2**30


class Trend(NamedTuple):
    """One series of one rank, in the order of the steps; NaN where it was not measured."""

    name: str
    unit: str
    steps: Array
    values: Array

    @property
    def ends(self) -> tuple[float, float]:
        """First and last known value."""
        known = self.values[np.isfinite(self.values)]
        return float(known[0]), float(known[-1])


def trends(view: RunView) -> Iterator[Trend]:
    """Step time, memory, loss and gradient norm of the first rank, those that have at least two values."""
    for one in _all(view):
        if np.isfinite(one.values).sum() > 1:
            yield one


def _all(view: RunView) -> Iterator[Trend]:
    if not view.ranks:
        return
    rank = view.ranks[0]
    series = view.per_rank[rank]
    settled = series.after_set_up
    yield Trend("step time", "ms", series.steps[settled], series.wall_ms[settled])
    yield memory(view, rank)
    yield scalar(view, rank, "loss")
    yield scalar(view, rank, "grad_norm")


def memory(view: RunView, rank: int) -> Trend:
    """Peak memory of the training: allocated on its GPU where that is known, else resident on the host."""
    series = view.per_rank[rank]
    on_gpu = bool((series.rows["peak_allocated_bytes"] >= 0).any())
    held = series.rows["peak_allocated_bytes" if on_gpu else "rss_bytes"].astype(float)
    held[held < 0] = np.nan
    return Trend("peak allocated" if on_gpu else "resident memory", "GiB", series.steps, held / GIB)


def scalar(view: RunView, rank: int, column: str) -> Trend:
    """Loss or gradient norm: from the device's late records where there are any, else from the steps."""
    device = thinned(view.record.device(rank))
    rows = device if np.isfinite(device[column]).any() else view.per_rank[rank].rows
    return Trend(column.replace("grad_norm", "gradient norm"), "", rows["step"], rows[column].astype(float))
