"""Verdicts on made ratios: identical commands are never called slower, a slowdown is found."""

from __future__ import annotations

import numpy as np
import pytest

from gputop_analysis.paired import judge


def ratios(rng, change: float, noise: float, count: int = 60) -> np.ndarray:
    """Pairs whose noise has heavy tails, as that of a busy machine."""
    return (1 + change) * np.exp(noise * rng.standard_t(3, count))


def test_identical_commands_are_never_slower():
    rng = np.random.default_rng(1)
    verdicts = [judge(ratios(rng, 0.0, 0.05), 4, 0.03).verdict for _ in range(200)]
    assert verdicts.count("slower") == 0
    assert verdicts.count("not slower") > 100


def test_at_the_threshold_itself_it_is_seldom_wrong():
    rng = np.random.default_rng(2)
    verdicts = [judge(ratios(rng, 0.03, 0.05), 4, 0.03).verdict for _ in range(300)]
    assert verdicts.count("slower") <= 6


@pytest.mark.parametrize("change", [0.08, 0.2])
def test_a_slowdown_is_found(change):
    rng = np.random.default_rng(3)
    verdicts = [judge(ratios(rng, change, 0.02), 4, 0.03).verdict for _ in range(100)]
    assert verdicts.count("slower") >= 95


@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_a_few_pairs_decide_nothing(count):
    judged = judge(np.full(count, 1.5), 4, 0.03)
    assert judged.verdict == "undecided" and judged.change.high == float("inf")


def test_pairs_that_hang_together_count_less():
    rng = np.random.default_rng(4)
    walk = np.exp(np.convolve(rng.normal(0, 0.05, 120), np.ones(12) / 3, "valid"))
    alone = np.exp(rng.permutation(np.log(walk)))
    width = [judge(one, 4, 0.03).change for one in (walk, alone)]
    assert width[0].high - width[0].low > 1.5 * (width[1].high - width[1].low)
