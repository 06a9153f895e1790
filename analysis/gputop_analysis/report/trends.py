"""The few series that every form of the report draws, over the whole run of its first rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gputop_analysis.numerics import numerics
from gputop_analysis.view import Array, RunView


class TrendLine(NamedTuple):
    """One series in the order of the steps; NaN where it was not measured."""

    name: str
    unit: str
    steps: Array
    values: Array
    marks: Array
    """Indices of the points that stand out."""

    @property
    def ends(self) -> tuple[float, float]:
        """Medians of the first and last tenth of the known values: single steps say little."""
        finite = self.values[np.isfinite(self.values)]
        tenth = max(1, len(finite) // 10)
        return float(np.median(finite[:tenth])), float(np.median(finite[-tenth:]))

    @property
    def is_constant(self) -> bool:
        """Whether all known values are the same."""
        finite = self.values[np.isfinite(self.values)]
        return bool((finite == finite[0]).all())


def trends(view: RunView) -> Iterator[TrendLine]:
    """Step time, memory, loss, gradient norm, learning rate, with two values or more."""
    figures = numerics(view)
    if figures is None:
        return
    series = figures.series
    # the first step holds the set-up
    settled = np.where(series.first_step == 0, np.nan, series.step_time_ms)
    if figures.memory_of == "allocated":
        memory = "peak allocated"
    else:
        memory = "resident memory"
    for axis, name, unit, values in (
        ("step_time", "step time", "ms", settled),
        ("memory", memory, "GiB", series.memory_gib),
        ("loss", "loss", "", series.loss),
        ("grad_norm", "gradient norm", "", series.grad_norm),
        ("lr", "learning rate", "", series.lr),
    ):
        if np.isfinite(values).sum() > 1:
            # a schedule may jump as it likes
            if axis != "lr":
                marks = figures.marks(axis)
            else:
                marks = figures.marks("")
            yield TrendLine(name, unit, steps=series.step, values=values, marks=marks)
