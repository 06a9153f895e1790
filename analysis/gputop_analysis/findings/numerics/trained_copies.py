"""Steps of another optimizer between the training's own: an evaluation that trains a copy."""

from __future__ import annotations

import numpy as np

from gputop_analysis.view import Array

OTHER_RATE, TIMES = 3.0, 2
"""A rate so many times larger or smaller, from which the usual one has come back so often, is that
of another optimizer.
"""
NEAR, SPOILT = 5, 1.3
"""Records right before and after such steps, and times that the loss is higher after them where
they have trained the model itself.
"""


def are_of_a_copy(rows: Array, steps: Array, losses: Array, spikes: Array) -> bool:
    """Whether the steps that stand out, again and again, had another learning rate than all around
    them, and the loss is what it was when they are over: they are another optimizer's, as where an
    evaluation trains a copy of the model.
    """
    rates = np.asarray(rows["lr"], np.float64)
    rates = rates[np.minimum(np.searchsorted(rows["step"], steps), len(rates) - 1)]
    if not np.isfinite(rates).all():
        return False
    usual = float(np.median(rates))
    apart = (rates > OTHER_RATE * usual) | (rates * OTHER_RATE < usual)
    changes = np.diff(apart.astype(int))
    begins, ends = np.flatnonzero(changes > 0) + 1, np.flatnonzero(changes < 0) + 1
    ends = ends[ends > begins.min(initial=len(apart))]
    if len(ends) < TIMES or not apart[spikes].all():
        return False
    before = [float(np.median(losses[max(0, at - NEAR) : at])) for at in begins]
    after = [float(np.median(losses[at : at + NEAR])) for at in ends]
    return float(np.median(after)) < SPOILT * float(np.median(before))
