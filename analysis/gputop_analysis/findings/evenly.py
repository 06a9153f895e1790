"""A whole run's steps on an even axis, and what the work of a step is counted by."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gputop_agent import wire
from gputop_analysis.series import WARM_UP_STEPS, picked
from gputop_analysis.view import Array

SAME_WORK = 0.05
RECORDS = 1500
"""Spread over the whole run, live too: it is compared with its own beginning."""


def spread_rows(rows: Array) -> Array:
    """Steady records of the last attempt, at most ``RECORDS``, evenly spread."""
    rows = np.asarray(rows[:: max(1, len(rows) // RECORDS)])
    back = np.flatnonzero(np.diff(rows["step"].astype(np.int64)) < 0)
    rows = rows[back[-1] + 1 :] if len(back) else rows
    return picked(
        rows, ((rows["flags"] & wire.F_UNSTEADY) == 0) & (rows["step"] >= 2 * WARM_UP_STEPS)
    )


class Evenly:
    """Records on stretches of equally many steps: fast steps share a record with more."""

    def __init__(self, rows: Array):
        self._rows = rows
        counts = np.maximum(rows["n_steps"].astype(np.int64), 1)
        self._ends = np.concatenate([[0], np.cumsum(counts)])
        self._size = max(1, int(np.median(counts)))
        self._edges = np.arange(0, self._ends[-1] + 1, self._size)

    def per_step(self, column: str) -> Array:
        """Mean of a summed column per step in each stretch."""
        total = np.concatenate([[0.0], np.cumsum(self._rows[column], dtype=np.float64)])
        return np.diff(np.interp(self._edges, self._ends, total)) / self._size

    def ms(self, column: str) -> Array:
        """The same of a duration, in milliseconds."""
        return self.per_step(column) / 1e6

    def began_ns(self, index: int) -> int:
        """When the record with the first step of a stretch ended."""
        return int(self._rows["t_end_ns"][self._record(index)])

    def _record(self, index: int) -> int:
        return int(np.searchsorted(self._ends, self._edges[index], side="right")) - 1

    @cached_property
    def steps(self) -> Array:
        """Index of the first step of each stretch."""
        begins = self._edges[:-1]
        record = np.searchsorted(self._ends, begins, side="right") - 1
        last = self._rows["step"][record].astype(np.int64)
        return last - (self._ends[record + 1] - begins) + 1

    def step(self, index: int) -> int:
        """Index of the first step of a stretch."""
        return int(self.steps[index])


def work_of(evenly: Evenly, index: int) -> tuple[str, Array | float]:
    """Measure of a step's work where that changed too: tokens, samples, micro-batches; relative."""
    for name in ("tokens", "samples", "micro_batches"):
        per_step = evenly.per_step(name)
        if (per_step > 0).all():
            before, after = per_step[:index].mean(), per_step[index:].mean()
            if abs(after / before - 1) > SAME_WORK:
                return name, per_step / before
    return "step", 1.0
