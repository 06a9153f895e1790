"""Is one rank slower than chance makes it? A test that autocorrelated and few steps do not fool.

Step times drift: a rank that is slow now is slow for a while, so a hundred steps may be worth three
independent ones. Counting who was slowest, or permuting blocks of steps that are too short, then
names somebody in most clean runs. Here the error of a rank's mean is worked out with the drift in
it, and with how badly the drift is known from so few steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SIGNIFICANCE, LEAST_P = 0.01, 1e-12
"""The tail of the approximation says nothing about chances below ``LEAST_P``."""
MIN_EFFECT_MS, MIN_EFFECT_SHARE = 2.0, 0.03

_UNCERTAIN_BELOW, _SHORT_BELOW = 30.0, 5.0
"""Autocorrelation times seen, on all ranks together and by each, for no margin on the estimate."""
_MARGIN = 3.0
"""The largest margin, in standard errors of the autocorrelation."""
_BIAS, _SECOND_ORDER_BIAS = 0.7, 90.0
"""How far a coefficient measured on n steps falls short: 0.7 (1 + 3 rho) / n + 90 / n². Kendall's
first term is taken in part, since it overstates the error of pooled ranks; the second was fitted to
simulated runs of 30 and 60 steps.
"""
_STRONGEST = 0.999
_BATCHES = (8, 20)


class Culprit(NamedTuple):
    """The rank that waits least, and how likely its lead is chance."""

    column: int
    """Its place among the ranks."""
    lead_ms: float
    """How much longer than it the typical other rank waits, per step."""
    threshold_ms: float
    """The lead that it must have to be worth a word."""
    p: float
    """Chance that some rank leads by as much in a run in which all are alike."""


class LevelError(NamedTuple):
    """Standard error of a rank's mean, and the degrees of freedom that it was estimated with."""

    value: float
    dof: float


def find_culprit(
    waits_ms: Array, wall_ms: float, significance: float = SIGNIFICANCE
) -> Culprit | None:
    """The persistently slow rank, if there is one: it waits at least 3 % of a step and 2 ms less
    than the others.

    Args:
        waits_ms: steps x ranks, each rank's waiting for the others.
        wall_ms: mean time of a step; the 3 % are of what it takes without the typical rank's wait.

        significance: chance of such a lead that is accepted.

    Returns:
        None where no lead is large enough, or where it may be chance (p > ``significance``).
    """
    steps, ranks = waits_ms.shape
    if steps < 10 or ranks < 2:
        return None
    means = waits_ms.mean(axis=0)
    column = int(np.argmin(means))
    lead = typical(np.delete(means, column)) - float(means[column])
    threshold = max(MIN_EFFECT_MS, MIN_EFFECT_SHARE * (wall_ms - float(np.median(means))))
    if lead < threshold:
        return None
    error = level_error(waits_ms)
    if error.value > 0:
        p = min(1.0, max(LEAST_P, ranks * student_tail(lead / error.value, error.dof)))
    else:
        p = LEAST_P
    if p <= significance:
        return Culprit(column, lead, threshold, p)
    return None


def typical(means: Array) -> float:
    """Mean without the largest and the smallest quarter: nearly as sure as the mean, and no one
    rank moves it far.
    """
    drop = max(1, len(means) // 4) if len(means) > 2 else 0
    return float(np.sort(means)[drop : len(means) - drop].mean())


def level_error(waits_ms: Array) -> LevelError:
    """Standard error of the difference between one rank's mean and the others', if all ranks are
    alike.

    The larger of two estimates: from an AR(1) model of the ranks' deviations from each step's mean,
    its coefficient corrected for the bias of short series (Kendall 1954), and, where there is
    slower drift than that, from batch means.
    """
    steps, ranks = waits_ms.shape
    deviation = waits_ms - waits_ms.mean(axis=1, keepdims=True)
    deviation = deviation - deviation.mean(axis=0)
    rho = _coefficient(deviation)
    innovation = float(np.square(deviation[1:] - rho * deviation[:-1]).sum()) / (
        (steps - 1) * (ranks - 1)
    )
    variance = innovation / (1 - rho**2) * _variance_of_mean(rho, steps)
    tau = (1 + rho) / (1 - rho)
    dof = max(0.5, steps / tau - 1) * (ranks - 1)
    batched, batches = _batch_variance(deviation, tau)
    if batched > 1.5 * variance:
        variance, dof = batched, min(dof, (batches - 1) * (ranks - 1))
    return LevelError(math.sqrt(variance * ranks / (ranks - 1)), dof)


def student_tail(t: float, dof: float) -> float:
    """P(T >= t) of Student's t with ``dof`` degrees of freedom, t >= 0 (after Wallace 1959)."""
    z = (8 * dof + 1) / (8 * dof + 3) * math.sqrt(dof * math.log1p(t * t / dof))
    return 0.5 * math.erfc(z / math.sqrt(2))


def _coefficient(deviation: Array) -> float:
    """AR(1) coefficient of all ranks together; too large rather than too small where few steps tell
    it.
    """
    steps, ranks = deviation.shape
    power = float(np.square(deviation).sum())
    if power <= 0:
        return 0.0
    rho = float((deviation[1:] * deviation[:-1]).sum()) / power
    rho = min(rho + _BIAS * (1 + 3 * rho) / steps + _SECOND_ORDER_BIAS / steps**2, _STRONGEST)
    effective_steps = steps * (1 - rho) / (1 + rho)
    margin = _MARGIN * max(
        0.0,
        1 - effective_steps * (ranks - 1) / _UNCERTAIN_BELOW,
        1 - effective_steps / _SHORT_BELOW,
    )
    rho += margin * math.sqrt(max(1 - rho**2, 0.0) / (steps * (ranks - 1)))
    return min(max(rho, 0.0), _STRONGEST)


def _variance_of_mean(rho: float, steps: int) -> float:
    """Of the mean of so many steps of an AR(1) series with variance 1."""
    return (1 + rho) / (1 - rho) / steps - 2 * rho * (1 - rho**steps) / (steps * (1 - rho)) ** 2


def _batch_variance(deviation: Array, tau: float) -> tuple[float, int]:
    """Variance of a rank's mean from the means of batches of steps, and the number of batches."""
    steps, ranks = deviation.shape
    batches = int(min(_BATCHES[1], max(_BATCHES[0], steps / (5 * tau)), steps // 2))
    length = steps // batches
    means = deviation[steps - length * batches :].reshape(batches, length, ranks).mean(axis=1)
    spread = float(np.square(means - means.mean(axis=0)).sum()) / ((batches - 1) * (ranks - 1))
    return spread / batches, batches
