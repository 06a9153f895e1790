"""Losses of the run: the mean over its ranks, step by step."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.told import spread
from gputop_analysis.view import Array, RunView, once_per_view

LIVE_STEPS = 600
NEIGHBOURS = 5
"""Records whose median is the level of a rank's loss between two of them."""


@once_per_view
def mean_losses(view: RunView) -> tuple[Array, Array, Array]:
    """First and last step of each record, and the loss averaged over the ranks that have one.

    Of folded steps the largest loss counts, so that none is lost; older records have only the last
    one's. While a run is live only the newest records are looked at. Steps that gather fewer
    gradients than the others are left out: their losses are divided by another number.
    """
    firsts, lasts, losses = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    for rank in spread(view.ranks):
        series, device = view.per_rank[rank], view.device(rank)
        if len(device) and np.isfinite(device["loss"]).any():
            rows = device
        else:
            rows = series.rows[series.attempt_start :]
        rows = rows[-LIVE_STEPS:] if view.live else rows
        loss = largest_loss(rows)
        finite = np.isfinite(loss) & ~np.isin(rows["step"], _cut_short(series.rows))
        last = rows["step"][finite].astype(np.int64)
        if "n_steps" in (rows.dtype.names or ()):
            folded = rows["n_steps"][finite].astype(np.int64)
        else:
            folded = 1
        lasts.append(last)
        firsts.append(last - np.maximum(folded, 1) + 1)
        losses.append(loss[finite])
    steps = lasts[-1]
    if (
        len(lasts) > 1
        and (np.diff(steps) > 0).all()
        and all(np.array_equal(steps, last_steps) for last_steps in lasts[1:-1])
    ):
        return np.minimum.reduce(firsts[1:]), steps, np.mean(losses[1:], axis=0)
    every, position = np.unique(np.concatenate(lasts), return_inverse=True)
    first = every.copy()
    np.minimum.at(first, position, np.concatenate(firsts))
    present = [(last, loss) for last, loss in zip(lasts, losses, strict=True) if len(last)]
    if not present:
        return first, every, np.zeros(0)
    return first, every, np.mean([_at(every, last, loss) for last, loss in present], axis=0)


ACCUMULATES, SELDOM = 2, 0.2
"""Micro-batches of a step that accumulates, and the most steps that may have fewer than usual."""


def _cut_short(rows: Array) -> Array:
    """Steps that accumulate over fewer micro-batches than most do: an epoch's last ones."""
    micro_batches = rows["micro_batches"] / np.maximum(rows["n_steps"], 1)
    usual = float(np.median(micro_batches)) if len(rows) else 0.0
    short = micro_batches < usual
    if usual < ACCUMULATES or np.mean(short) > SELDOM:
        return rows["step"][:0]
    return rows["step"][short]


def _at(steps: Array, own_steps: Array, losses: Array) -> Array:
    """A rank's loss at all ``steps``: where it has no record of its own, its level there. Else the
    mean would jump between the levels of the ranks that happen to have one.
    """
    order = np.argsort(own_steps, kind="stable")
    own_steps, losses = own_steps[order], losses[order]
    width = min(NEIGHBOURS, len(losses))
    around = np.pad(losses, (width // 2, width - 1 - width // 2), mode="edge")
    levels = np.median(np.lib.stride_tricks.sliding_window_view(around, width), axis=1)
    filled = np.interp(steps, own_steps, levels)
    filled[np.searchsorted(steps, own_steps)] = losses
    return filled


def largest_loss(rows: Array) -> Array:
    """The largest loss of each record's steps; older records have only the last step's."""
    if "loss_max" not in (rows.dtype.names or ()):
        return rows["loss"]
    return np.fmax(rows["loss"], rows["loss_max"])
