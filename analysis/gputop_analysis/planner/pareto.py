"""Configurations that no other one beats in every respect."""

from __future__ import annotations

import numpy as np

from gputop_analysis.planner.layout import Bools, Floats


def front(*costs: Floats) -> Bools:
    """Which points are on the Pareto front; every cost is better when smaller.

    A point is off the front if another is no worse in every cost and better in one; equal points
    are on it together.
    """
    points = np.stack([np.asarray(cost, float) for cost in costs], axis=1)
    unique, where = np.unique(points, axis=0, return_inverse=True)
    unbeaten = np.ones(len(unique), dtype=bool)
    for i, point in enumerate(unique):
        if unbeaten[i]:
            beaten = np.all(unique >= point, axis=1)
            beaten[i] = False
            unbeaten &= ~beaten
    return unbeaten[where.ravel()]
