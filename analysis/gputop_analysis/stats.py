"""The statistics behind the findings: small, deterministic, NumPy only.

Training steps are autocorrelated and heavy-tailed, so nothing here assumes independent or normal
values: intervals come from resampled blocks of steps, levels from medians, trends from ranks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation times this estimates a normal distribution's standard deviation."""


class Interval(NamedTuple):
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float


class Trend(NamedTuple):
    """Kendall's tau of a series against time, and the chance of as strong a trend (two-sided)."""

    tau: float
    p: float


_LARGEST = 1e100


def weighted_quantile(values: Array, weights: Array, q: float) -> float:
    """The smallest value at which the cumulated weight reaches ``q`` of the total (inverse of the
    empirical CDF).

    A record that stands for n steps counts n times. NaN for no values.
    """
    if len(values) == 0:
        return float("nan")
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order], dtype=np.float64)
    if cumulated[-1] <= 0:
        return float("nan")
    index = int(np.searchsorted(cumulated, q * cumulated[-1] * (1 - 1e-12)))
    return float(values[order[min(index, len(order) - 1)]])


def mad_sigma(values: Array) -> float:
    """Robust standard deviation: 1.4826 times the median absolute deviation."""
    if len(values):
        return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values))))
    return float("nan")


def autocorrelation_time(values: Array) -> float:
    """Integrated autocorrelation time in samples, at least 1 (Sokal's automatic window with c = 5).

    1 means independent values; a mean over n values is worth one over n / tau independent ones.
    """
    n = len(values)
    if n:
        centred = np.asarray(values, np.float64) - np.mean(values)
    else:
        centred = np.zeros(0)
    if n < 8 or not np.any(centred):
        return 1.0
    size = 1 << (2 * n - 1).bit_length()
    centred = np.clip(centred, -_LARGEST, _LARGEST)  # whose square is a number still
    spectrum = np.abs(np.fft.rfft(centred, size)) ** 2
    rho = np.fft.irfft(spectrum, size)[:n]
    if not rho[0] > 0:  # the variance is lost below the smallest number
        return 1.0
    tau = 2.0 * np.cumsum(rho / rho[0]) - 1.0
    settled = np.flatnonzero(np.arange(n) >= 5.0 * tau)
    return float(max(1.0, tau[settled[0]] if len(settled) else tau.max()))


def block_length(values: Array, at_least: int = 10, at_most: int = 50) -> int:
    """Length of resampling blocks: five autocorrelation times, but ``at_least`` to ``at_most``
    blocks of the series.
    """
    n = len(values)
    wanted = int(np.ceil(5 * autocorrelation_time(values)))
    return max(1, min(max(wanted, n // at_most), n // at_least))


def block_sums(values: Array, block: int) -> Array:
    """Sums over consecutive blocks along the first axis; the last block may be shorter."""
    return np.add.reduceat(np.asarray(values, np.float64), np.arange(0, len(values), block), axis=0)


def block_bootstrap(
    numerators: Array,
    denominators: Array,
    block: int | None = None,
    resamples: int = 400,
    seed: int = 0,
) -> Interval:
    """Ratio of sums, such as a phase's share of the wall time, with a 95 % interval from resampled
    blocks of steps.

    Non-overlapping block bootstrap (Carlstein 1986), percentile interval.
    """
    total = float(np.sum(denominators))
    if len(numerators) == 0 or total <= 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    value = float(np.sum(numerators)) / total
    block = block or block_length(
        np.asarray(numerators) / np.maximum(np.asarray(denominators), 1e-300)
    )
    above, below = block_sums(numerators, block), block_sums(denominators, block)
    drawn = _drawn(len(above), resamples, seed)
    divisors = drawn @ below
    ratios = (drawn @ above)[divisors > 0] / divisors[divisors > 0]
    if len(ratios) == 0:
        return Interval(value, float("nan"), float("nan"))
    low, high = _middle_95(ratios)
    return Interval(value, float(min(low, value)), float(max(high, value)))


def _middle_95(values: Array) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles as by ``np.quantile``, at a tenth of its cost."""
    ordered = np.sort(values)
    places = np.array((0.025, 0.975)) * (len(ordered) - 1)
    low, high = np.interp(places, np.arange(len(ordered)), ordered)
    return float(low), float(high)


@lru_cache(maxsize=64)
def _drawn(count: int, resamples: int, seed: int) -> Array:
    """How often each of ``count`` blocks is drawn in each resample. A live view asks again."""
    picks = np.random.default_rng(seed).integers(0, count, (resamples, count))
    rows = np.repeat(np.arange(resamples), count)
    return (
        np.bincount(rows * count + picks.ravel(), minlength=resamples * count)
        .reshape(resamples, count)
        .astype(float)
    )


def theil_sen(x: Array, y: Array, at_most: int = 300) -> float:
    """Slope of y over x: the median of the slopes between all pairs (Theil 1950, Sen 1968).

    Up to 29 % of outliers do not move it. Long series are thinned evenly to ``at_most`` points. NaN
    for fewer than two.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(x) > at_most:
        keep = np.linspace(0, len(x) - 1, at_most).astype(int)
        x, y = x[keep], y[keep]
    first, second = np.triu_indices(len(x), 1)
    run = x[second] - x[first]
    slopes = (y[second] - y[first])[run != 0] / run[run != 0]
    return float(np.median(slopes)) if len(slopes) else float("nan")


def mann_kendall(values: Array) -> Trend:
    """Monotonic trend (Mann 1945, Kendall 1975): normal, with tie and continuity corrections."""
    values = np.asarray(values, np.float64)
    n = len(values)
    if n < 4:
        return Trend(0.0, 1.0)
    first, second = np.triu_indices(n, 1)
    score = float(np.sign(values[second] - values[first]).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float(np.sum(ties * (ties - 1) * (2 * ties + 5)))) / 18
    if variance <= 0:
        return Trend(0.0, 1.0)
    z = max(0.0, abs(score) - 1) / np.sqrt(variance)
    return Trend(score / (n * (n - 1) / 2), _two_sided(float(z)))


def _two_sided(z: float) -> float:
    from math import erfc, sqrt

    return erfc(z / sqrt(2))
