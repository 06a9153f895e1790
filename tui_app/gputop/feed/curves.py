"""The loss over the whole run, thinned to what a chart can show."""

from __future__ import annotations

import numpy as np

from gputop.feed.series import extremes
from gputop.feed.snapshot import Curve
from gputop_probes.record.reader import RunRecord, Table

POINTS = 400
READ = 8192
"""Steps that are looked at, at even distances where a run has more."""


def loss_curve(record: RunRecord) -> Curve:
    """Loss of the lowest rank that knows one: of the device clock's late records, or steps."""
    for rank in record.ranks():
        for rows in (record.device(rank), record.steps(rank)):
            curve = _thin(rows)
            if len(curve.values) > 1:
                return curve
    return Curve()


def _thin(rows: Table) -> Curve:
    """About ``POINTS`` finite values, the smallest and largest of their neighbours, which the
    screen of numerics shows too; they alone are read from the mapped file.
    """
    if not len(rows):
        return Curve()
    index = np.unique(np.linspace(0, len(rows) - 1, READ).astype(np.int64))
    return Curve(*extremes(rows["step"][index], rows["loss"][index], POINTS // 2))
