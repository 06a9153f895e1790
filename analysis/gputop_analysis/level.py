"""A lasting change of level in an autocorrelated, heavy-tailed series, or a climb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.stats import autocorrelation_time, mann_kendall, theil_sen

Array = npt.NDArray[Any]

TRIM = 0.1
"""A change is looked for between these parts of the series."""
ENOUGH = 5.0
"""Independent values that each side must be worth: fewer cannot tell a change from a
slow wander.
"""
JUMP = 8.0
"""Standard deviations of single values around their level: what changes by as much between two
neighbours is no slow wander, however few values there are (a straight climb changes by 3.5).
"""
SURE = 6.0
"""Standard errors. With white noise 3.5 would do for 1 % (sup-Wald, Andrews 1993, trimming 15 %);
the rest pays for an autocorrelation time that is estimated, and too short for series that wander
slowly.
"""


@dataclass(frozen=True)
class LevelChange:
    """From ``index`` on the series lies ``after - before`` higher (or lower)."""

    index: int
    before: float
    after: float
    error: float
    """Standard error of the difference, for values that are worth one in ``tau``."""
    tau: float
    """Integrated autocorrelation time on both sides of the change, in values."""

    @property
    def score(self) -> float:
        """The difference in standard errors."""
        return (self.after - self.before) / self.error


def level_change(values: Array) -> LevelChange | None:
    """The one change of level that divides the series best; None where none is sure.

    The place is the extreme of the CUSUM of deviations from the mean, weighted for the length of
    both sides. Outliers are cut at the distance of the outer deciles beyond them. What is left must
    be sure in view of the series' own autocorrelation, and the last fifth must still lie nearer to
    the new level than to the old one.
    """
    values = np.asarray(values, np.float64)
    n = len(values)
    if n < 20:
        return None
    # a new level that lasts is among them, a few outliers are not
    low, high = np.quantile(values, (TRIM, 1 - TRIM))
    if high > low:
        series = np.clip(values, low - (high - low), high + (high - low))
    else:
        series = values
    index = _place(series)
    before, after = series[:index], series[index:]
    residuals = np.concatenate([before - before.mean(), after - after.mean()])
    # rounding has no autocorrelation
    residuals[np.abs(residuals) < 1e-9 * max(1.0, float(np.abs(series).max()))] = 0.0
    independent = float(
        np.sqrt(float(residuals @ residuals) / (n - 2) * (1 / index + 1 / (n - index)))
    )
    if abs(float(after.mean()) - float(before.mean())) < SURE * independent:
        return None  # autocorrelation makes no error smaller
    if residuals.any():
        tau = max(autocorrelation_time(residuals), _ar1_time(residuals, min(index, n - index)))
    else:
        tau = 1.0
    jump = abs(float(after.mean()) - float(before.mean()))
    if min(index, n - index) < ENOUGH * tau and jump < JUMP * float(residuals.std()):
        return None
    change = LevelChange(
        index,
        float(before.mean()),
        float(after.mean()),
        independent * float(np.sqrt(tau)) or 1e-12,
        tau,
    )
    end = float(np.median(series[-max(1, n // 5) :]))
    stays = abs(end - change.after) < abs(end - change.before)
    return change if abs(change.score) >= SURE and stays else None


def _ar1_time(residuals: Array, n: int) -> float:
    """(1 + rho) / (1 - rho) of a first-order autoregression fitted to a stretch of ``n`` values.

    Within a short stretch a slow wander looks like a level; Kendall (1954) gives the bias of rho,
    (1 + 4 rho) / n.
    """
    rho = float(residuals[1:] @ residuals[:-1]) / float(residuals @ residuals)
    rho = min((n * rho + 1) / max(n - 4, 1), 0.9999)
    return max(1.0, (1 + rho) / (1 - rho))


def _place(series: Array) -> int:
    n = len(series)
    sums = np.cumsum(series - series.mean())[:-1]
    left_size = np.arange(1, n)
    first, last = max(1, int(TRIM * n)), max(2, int((1 - TRIM) * n))
    score = np.abs(sums) / np.sqrt(left_size * (n - left_size))
    return first + int(np.argmax(score[first - 1 : last]))


RAMP_BLOCKS = 24
"""Medians of so many stretches of the series show where it climbs."""
RAMP_P, RAMP_TAU = 1e-4, 0.6
"""Mann-Kendall on these medians: four in five pairs of them climb."""


@dataclass(frozen=True)
class Ramp:
    """From ``begin`` to ``end`` the series climbs without a step that would explain it."""

    begin: float
    end: float
    """Of the line fitted to the medians of blocks (Theil-Sen)."""
    error: float
    """Robust standard deviation of the medians around that line."""
    tau: float
    p: float


def ramp(values: Array, at: Array) -> Ramp | None:
    """A climb over the places ``at`` that a line fits better than a step does; None without one, or
    for few values.
    """
    values = np.asarray(values, np.float64)
    if len(values) < 2 * RAMP_BLOCKS:
        return None
    blocks, places = _medians(values), _medians(at)
    trend = mann_kendall(blocks)
    if trend.tau < RAMP_TAU or trend.p > RAMP_P:
        return None
    slope = theil_sen(places, blocks)
    height = float(np.median(blocks - slope * places))
    residual = blocks - height - slope * places
    if np.abs(residual).sum() >= min(_beside_a_step(blocks, i) for i in range(2, RAMP_BLOCKS - 1)):
        return None
    begin, end = height + slope * float(at[0]), height + slope * float(at[-1])
    return Ramp(begin, end, float(1.4826 * np.median(np.abs(residual))), trend.tau, trend.p)


def _medians(values: Array) -> Array:
    return np.array([np.median(part) for part in np.array_split(values, RAMP_BLOCKS)])


def _beside_a_step(blocks: Array, index: int) -> float:
    return float(
        sum(np.abs(part - np.median(part)).sum() for part in (blocks[:index], blocks[index:]))
    )
