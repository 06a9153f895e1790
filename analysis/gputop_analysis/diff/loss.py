"""The first step at which the losses of two runs differ."""

from __future__ import annotations

import numpy as np

from gputop_agent import wire
from gputop_analysis.diff.model import LossDiff
from gputop_analysis.view import Array, RunView

VISIBLE = 1e-3
"""Relative difference that is more than rounding."""


def compare_loss(a: RunView, b: RunView) -> LossDiff | None:
    """Losses of the first rank of both runs, step by step; None where no step has both."""
    for rank in sorted(set(a.ranks) & set(b.ranks)):
        (steps_a, loss_a), (steps_b, loss_b) = _losses(a, rank), _losses(b, rank)
        shared, i, j = np.intersect1d(steps_a, steps_b, assume_unique=True, return_indices=True)
        if len(shared):
            return _compared(
                rank, shared, a=loss_a[i], b=loss_b[j], same_seed=_same_seed(a, b, rank)
            )
    return None


def _compared(rank: int, steps: Array, a: Array, b: Array, same_seed: bool | None) -> LossDiff:
    differ = np.flatnonzero(a != b)
    visible = np.flatnonzero(np.abs(a - b) > VISIBLE * np.maximum(np.abs(a), np.abs(b)))
    first = None
    if len(differ):
        first = int(differ[0])
    return LossDiff(
        rank=rank,
        compared=len(steps),
        first_step=None if first is None else int(steps[first]),
        first_values=None if first is None else (float(a[first]), float(b[first])),
        first_visible_step=int(steps[visible[0]]) if len(visible) else None,
        last_step=int(steps[-1]),
        last_values=(float(a[-1]), float(b[-1])),
        same_seed=same_seed,
        equal_until=int(steps[first - 1]) if first else None,
    )


def _losses(view: RunView, rank: int) -> tuple[Array, Array]:
    """Steps, each once, ascending, and their finite losses; those that a GPU told late are taken
    before the host's.

    A record whose loss is that of an earlier step than its last one is left out: it does not say of
    which.
    """
    series, device = view.per_rank[rank], view.device(rank)
    rows = series.rows[series.attempt_start :]
    rows = rows[(rows["flags"] & wire.F_LOSS_EARLIER) == 0]
    steps = np.concatenate([device["step"].astype(np.int64), rows["step"].astype(np.int64)])
    losses = np.concatenate([device["loss"], rows["loss"]]).astype(np.float64)
    finite = np.isfinite(losses)
    unique, at = np.unique(steps[finite], return_index=True)
    return unique, losses[finite][at]


def _same_seed(a: RunView, b: RunView, rank: int) -> bool | None:
    seeds = [(view.hello(rank).get("flags") or {}).get("seed") for view in (a, b)]
    if None in seeds:
        return None
    return seeds[0] == seeds[1]
