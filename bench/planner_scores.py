"""How good predictions are: errors, ranks, and what a user loses by taking the predicted best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from gputop_analysis.planner.layout import Floats


def errors(predicted: Floats, measured: Floats) -> dict[str, float]:
    """Of step times, in percent: mean and median absolute error, median bias; empty
    without rows.
    """
    if not len(predicted):
        return {}
    off = 100 * (np.asarray(predicted) / np.asarray(measured) - 1)
    return {
        "mape_pct": float(np.mean(np.abs(off))),
        "median_error_pct": float(np.median(np.abs(off))),
        "bias_pct": float(np.median(off)),
    }


def spearman(a: Floats, b: Floats) -> float:
    """Rank correlation, equal values sharing their mean rank; nan below three values or where one
    does not vary.
    """
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def regrets(scores: Floats, measured: Floats, cells: Sequence[Hashable]) -> dict[Hashable, float]:
    """Of each cell with two rows or more: how much longer the row with the least score took than
    the fastest one, as a share. Rows with equal scores count with their mean: whoever has no
    preference takes any.
    """
    members: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, cell in enumerate(cells):
        members[cell].append(i)
    found = {}
    for cell, index in members.items():
        if len(index) > 1:
            mine, took = np.asarray(scores)[index], np.asarray(measured)[index]
            picked = took[mine <= mine.min() * (1 + 1e-9)]
            found[cell] = float(picked.mean() / took.min() - 1)
    return found


def _ranks(values: Floats) -> Floats:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2)[where]
