"""Where a loss goes over many steps: it falls, stands still or rises.

Losses of neighbouring steps resemble each other, so single steps are no independent evidence:
blocks of at least five autocorrelation times are, and the trend test runs on their medians.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from gputop_analysis.stats import autocorrelation_time, mad_sigma, mann_kendall, theil_sen
from gputop_analysis.view import Array

MIN_STEPS = 1000
MIN_BLOCKS, MAX_BLOCKS = 10, 40
BENDS = 3
"""Of the curve (a polynomial) that is taken off before the autocorrelation is measured."""
SURE_P = 0.01
"""Mann-Kendall's p below which a trend is one."""
STILL_P, STILL_SHARE = 0.10, 0.01
"""A loss stands still where p is above the first and the fitted change below this share."""


@dataclass(frozen=True, slots=True)
class LossTrend:
    """The trend of the loss over a window of steps."""

    kind: Literal["falling", "still", "rising", "unclear"]
    first_step: int
    last_step: int
    first_loss: float
    """Median of the window's first quarter of blocks."""
    last_loss: float
    """The same of its last quarter."""
    change: float
    """Theil-Sen slope times the length of the window."""
    p: float
    """Mann-Kendall on block medians, two-sided."""
    blocks: int
    noise: float
    """Robust standard deviation of the blocks around the fitted line."""


def loss_trend(first_steps: Array, steps: Array, losses: Array) -> LossTrend | None:
    """Judge the newest half of a series, but at least 1000 steps of it.

    Args:
        first_steps, steps: first and last step of each point, ascending.
        losses: one per point; NaN is left out.

    Returns:
        None for fewer than 1000 steps, or where the loss is so autocorrelated that no ten blocks of
        it are independent.
    """
    finite = np.isfinite(losses)
    if not finite.any():
        return None
    firsts, lasts, values = first_steps[finite], steps[finite], losses[finite]
    span = int(lasts[-1] - firsts[0]) + 1
    if span < MIN_STEPS:
        return None
    begin = (
        int(np.searchsorted(firsts, lasts[-1] + 1 - max(MIN_STEPS, span // 2), side="right")) - 1
    )
    firsts, lasts, values = firsts[max(0, begin) :], lasts[max(0, begin) :], values[max(0, begin) :]
    blocks = _blocks(values)
    if blocks is None:
        return None
    return _judged(blocks, int(firsts[0]), int(lasts[-1]))


def _blocks(values: Array) -> Array | None:
    """Medians of blocks that are five autocorrelation times long, of what is left beside a smooth
    curve.

    Losses fall, turn and rise in bends: beside a straight line each bend would look like
    autocorrelation.
    """
    n = len(values)
    if n < 4 * MIN_BLOCKS:
        return None
    at = np.linspace(-1.0, 1.0, n)
    residual = values - np.polyval(np.polyfit(at, values, BENDS + 1), at)
    length = max(int(np.ceil(5 * autocorrelation_time(residual))), n // MAX_BLOCKS)
    count = n // length
    if count < MIN_BLOCKS:
        return None
    return np.array([np.median(part) for part in np.array_split(values, count)])


def _judged(blocks: Array, first_step: int, last_step: int) -> LossTrend:
    at = np.arange(len(blocks), dtype=np.float64)
    slope, trend, quarter = theil_sen(at, blocks), mann_kendall(blocks), max(1, len(blocks) // 4)
    change = slope * (len(blocks) - 1)
    level = float(np.median(blocks))
    if trend.p < SURE_P and change != 0:
        direction = "rising" if change > 0 else "falling"
    elif trend.p > STILL_P and abs(change) < STILL_SHARE * abs(level):
        direction = "still"
    else:
        direction = "unclear"
    first, last = float(np.median(blocks[:quarter])), float(np.median(blocks[-quarter:]))
    noise = mad_sigma(blocks - slope * at)
    return LossTrend(
        direction, first_step, last_step, first, last, change, trend.p, len(blocks), noise
    )


AWAY = 3.0
"""Times what the training began with, from which a loss that climbs has run away."""
AWAY_BLOCKS = (8, 24)
THROWN = 10.0
"""Times the first loss, above which a training stays that its first updates threw out."""
AT_THE_TOP = 0.8
"""Part of the highest block's level that the last one still has."""


@dataclass(frozen=True, slots=True)
class Runaway:
    """A loss that climbs far beyond what the training began with, and has not come down again."""

    first_step: int
    last_step: int
    start: float
    low: float
    """Median of the lowest block, from which it climbs."""
    last: float
    p: float
    blocks: int
    threshold: float = AWAY


def runaway(first_steps: Array, steps: Array, losses: Array, start: float) -> Runaway | None:
    """Look for a climb at the end of a series, however short: eight points are the least.

    Args:
        first_steps, steps: first and last step of each point, ascending.
        losses: one per point; NaN is left out.
        start: level of the first losses of the training. Only what is worse than no training at all
            has run away.

    Returns:
        None without such a climb, where it comes down again, or where losses are not positive.
    """
    finite = np.isfinite(losses)
    firsts, lasts, values = first_steps[finite], steps[finite], losses[finite]
    if len(values) < AWAY_BLOCKS[0] or not start > 0 or (values <= 0).any():
        return None
    edges = np.linspace(0, len(values), min(AWAY_BLOCKS[1], len(values)) + 1).astype(int)
    blocks = np.array([np.median(values[i:j]) for i, j in pairwise(edges)])
    lowest = int(np.argmin(blocks))
    climb = blocks[lowest:]
    if len(climb) < AWAY_BLOCKS[0]:
        return None
    low, last = float(climb[0]), float(climb[-1])
    trend = mann_kendall(climb)
    if (
        last < AWAY * max(start, low)
        or last < AT_THE_TOP * climb.max()
        or trend.p > SURE_P
        or trend.tau <= 0
    ):
        return None
    return Runaway(
        int(firsts[edges[lowest]]), int(lasts[-1]), start, low, last, trend.p, len(climb)
    )


def thrown_out(first_steps: Array, steps: Array, losses: Array, first: float) -> Runaway | None:
    """Look for a loss that the first updates threw up and that never came back, so that no climb is
    left to see.

    Args:
        first_steps, steps, losses: as for ``runaway``.
        first: loss of the very first step, before any update.

    Returns:
        None where a block of steps comes down to ten times the first loss, or losses are few or not
        positive.
    """
    finite = np.isfinite(losses)
    firsts, lasts, values = first_steps[finite], steps[finite], losses[finite]
    if len(values) < AWAY_BLOCKS[0] or not first > 0 or (values <= 0).any():
        return None
    parts = np.array_split(values, min(AWAY_BLOCKS[1], len(values)))
    blocks = np.array([np.median(part) for part in parts[1:]])
    low = float(blocks.min())
    if low < THROWN * first:
        return None
    return Runaway(
        int(firsts[0]), int(lasts[-1]), first, low, float(blocks[-1]), 0.0, len(blocks), THROWN
    )
