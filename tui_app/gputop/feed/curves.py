"""The loss over the whole run, thinned to what a chart can show."""

from __future__ import annotations

import numpy as np

from gputop.feed.snapshot import Curve
from gputop_probes.record.reader import RunRecord, Table

POINTS = 400


def loss_curve(record: RunRecord) -> Curve:
    """Loss of the lowest rank that knows one: of the device clock's late records, or steps."""
    for rank in record.ranks():
        for rows in (record.device(rank), record.steps(rank)):
            curve = _thin(rows)
            if len(curve.values) > 1:
                return curve
    return Curve()


def _thin(rows: Table) -> Curve:
    """At most ``POINTS`` finite values at even distances, read alone from the mapped file."""
    if not len(rows):
        return Curve()
    index = np.unique(np.linspace(0, len(rows) - 1, POINTS).astype(np.int64))
    picked = rows[index]
    picked = picked[np.isfinite(picked["loss"])]
    return Curve(tuple(picked["step"].tolist()), tuple(picked["loss"].tolist()))
