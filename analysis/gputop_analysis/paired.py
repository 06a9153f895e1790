"""Ratio of two step times measured in turns, with an interval that no shape of noise breaks.

Slices of the two runs lie beside each other in time, so that what else the machine does meets both.
The interval is that of the signed-rank test (Wilcoxon 1945, Hodges and Lehmann 1963) on the
logarithms of their ratios. Two times are judged: that of the clock, and that without the waits of
the training's thread for a core, which other programs cause; each with half of the error.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from gputop_analysis.stats import Interval, autocorrelation_time

BETWEEN_PROCESSES = 0.005
"""Standard deviation between two processes of one program, on top of the slices' own."""
ERROR = 0.025
"""Chance of a verdict that is wrong at the threshold itself, over all looks; each side."""
_EXACT = 50
"""So many values are judged by the exact distribution, more by the normal one."""

Verdict = Literal["slower", "not slower", "undecided"]


class PairedChange(NamedTuple):
    """The change of the step time, and what is sure of it."""

    verdict: Verdict
    change: Interval
    """B / A - 1 of the time without waits for a core; of the clock's where those are not known."""
    clock: Interval
    pairs: int
    rounds: int
    surely_beyond: bool = True
    """Of ``slower``: by more than the threshold; else that is only the likeliest."""


def judge(ratios: np.ndarray, rounds: int, threshold: float, error: float = ERROR) -> PairedChange:
    """Say whether B is surely slower than A by more than ``threshold``, or surely not.

    Args:
        ratios: B / A of each pair of slices, in the order of time: by the clock, and without waits
            for a core (NaN: not known).
        rounds: how often each side was started anew.
        threshold: share, 0.03 for 3 %.
        error: chance of a wrong verdict at this look. Looks add theirs up.
    """
    clock, without_waits = (
        interval(column, rounds, error / 2) for column in ratios.reshape(-1, 2).T
    )
    change = without_waits if _own_is_known(ratios) else clock
    verdict: Verdict = "undecided"
    if change.low > threshold or clock.low > threshold:
        verdict = "slower"
    elif change.high < threshold:
        verdict = "not slower"
    return PairedChange(verdict, change, clock, len(ratios), rounds)


def judge_last(ratios: np.ndarray, rounds: int, threshold: float, error: float) -> PairedChange:
    """The same at the last look, of which only whether B is slower at all need be sure.

    Where noise hides on which side of the threshold a change lies, the likeliest value says it.
    That is asked once, with an error of its own: a chance of ERROR / 2 that equal commands are
    called slower, if they were not found equal before.
    """
    judged = judge(ratios, rounds, threshold, error)
    if judged.verdict != "undecided":
        return judged
    deciding = ratios.reshape(-1, 2)[:, int(_own_is_known(ratios))]
    change = interval(deciding, rounds, ERROR / 2)
    if change.low > 0 and change.value > threshold:
        return judged._replace(verdict="slower", change=change, surely_beyond=False)
    return judged


def _own_is_known(ratios: np.ndarray) -> bool:
    """Whether each pair has the time without waits for a core, which then decides."""
    return bool(len(ratios)) and bool(np.isfinite(ratios[:, 1]).all())


def interval(ratios: np.ndarray, rounds: int, error: float) -> Interval:
    """B / A - 1 with its interval; unbounded where there are too few pairs."""
    ratios = ratios[np.isfinite(ratios)]
    if len(ratios) == 0:
        return Interval(float("nan"), -1.0, float("inf"))
    logs = _independent(np.log(ratios))
    first, second = np.triu_indices(len(logs))
    averages = np.sort((logs[first] + logs[second]) / 2)
    value = float(np.median(averages))
    position = _place(len(logs), error)
    if position == 0:
        return Interval(float(np.expm1(value)), -1.0, float("inf"))
    processes = NormalDist().inv_cdf(1 - error) * BETWEEN_PROCESSES * np.sqrt(2 / max(1, rounds))
    below = np.hypot(value - averages[position - 1], processes)
    above = np.hypot(averages[-position] - value, processes)
    return Interval(*(float(np.expm1(x)) for x in (value, value - below, value + above)))


def _independent(logs: np.ndarray) -> np.ndarray:
    """Means over so many neighbours as hang together."""
    length = int(np.ceil(autocorrelation_time(logs)))
    count = len(logs) // length
    if length == 1 or count < 2:
        return logs
    return logs[: count * length].reshape(count, length).mean(1)


def _place(count: int, error: float) -> int:
    """Rank of the Walsh average that bounds the interval; 0 where so few pairs allow none."""
    largest = count * (count + 1) // 2
    if count > _EXACT:
        deviation = np.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return max(0, int(largest / 2 + NormalDist().inv_cdf(error) * deviation))
    ways = np.zeros(largest + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] = ways[rank:] + ways[: largest + 1 - rank]
    return int(np.searchsorted(np.cumsum(ways) / 2.0**count, error))
