"""The statistics, against brute force, known answers and injected effects."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gputop_analysis import stats

FLOATS = st.floats(-1e6, 1e6, allow_nan=False, width=32)
SERIES = arrays.arrays(np.float64, st.integers(2, 60), elements=FLOATS)


def autocorrelated(random, steps, ranks, rho):
    """AR(1) noise with unit variance, steps x ranks."""
    noise = random.standard_normal((steps, ranks))
    for i in range(1, steps):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return noise


@given(SERIES, st.data())
def test_a_weight_is_worth_as_many_copies(values, data):
    weights = data.draw(arrays.arrays(np.int64, len(values), elements=st.integers(1, 9)))
    q = data.draw(st.floats(0, 1))
    repeated = np.repeat(values, weights)
    expected = np.quantile(repeated, q, method="inverted_cdf")
    assert stats.weighted_quantile(values, weights, q) == expected


@given(SERIES, st.floats(-100, 100, width=32), st.floats(-1e3, 1e3, width=32))
def test_theil_sen_finds_a_line_and_shrugs_off_an_outlier(noise, slope, offset):
    x = np.arange(40.0)
    y = offset + slope * x
    y[7] += 1e6
    assert stats.theil_sen(x, y) == pytest.approx(slope, abs=1e-6 * max(1, abs(slope), abs(offset)))


@given(SERIES)
def test_mann_kendall_is_antisymmetric_and_rank_based(values):
    trend, mirrored = stats.mann_kendall(values), stats.mann_kendall(-values)
    assert mirrored.tau == pytest.approx(-trend.tau)
    assert mirrored.p == pytest.approx(trend.p)
    assert 0 <= trend.p <= 1


def test_mann_kendall_agrees_with_published_example():
    # 8 rising values: S = 28, variance 65.33, z = 3.34
    trend = stats.mann_kendall(np.arange(8.0))
    assert trend.tau == 1
    assert trend.p == pytest.approx(0.000836, abs=2e-6)


def test_mann_kendall_stays_calm_on_noise():
    random = np.random.default_rng(0)
    hits = sum(stats.mann_kendall(random.standard_normal(12)).p < 0.01 for _ in range(600))
    assert hits <= 18  # 1 % of 600, and three standard deviations


@given(
    arrays.arrays(np.float64, st.integers(1, 200), elements=st.floats(0, 1e3, width=32)),
    st.integers(1, 20),
)
def test_block_sums_lose_nothing(values, block):
    assert stats.block_sums(values, block).sum() == pytest.approx(values.sum())


@given(
    arrays.arrays(np.float64, st.integers(20, 200), elements=st.floats(0.125, 128, width=32)),
    st.floats(0, 1),
)
@settings(max_examples=40)
def test_bootstrap_interval_holds_its_value_and_is_exact_for_a_constant_share(walls, share):
    interval = stats.block_bootstrap(share * walls, walls)
    assert interval.low <= interval.value <= interval.high
    assert interval.value == pytest.approx(share)
    assert interval.high - interval.low < 1e-9


def test_bootstrap_interval_covers_the_truth_of_autocorrelated_steps():
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        wall = np.exp(0.2 * autocorrelated(random, 400, 1, 0.8)[:, 0])
        data = 0.3 * np.exp(0.2 * autocorrelated(random, 400, 1, 0.8)[:, 0])
        interval = stats.block_bootstrap(data, wall)
        covered += interval.low <= 0.3 <= interval.high
    assert covered >= 165  # nominal 190; naive resampling of single steps covers about 120


def test_one_event_among_many_steps_has_no_sure_share():
    values = np.zeros(400)
    values[200] = 100.0
    assert stats.block_bootstrap(values, np.ones(400)).low == 0


def test_autocorrelation_time_of_ar1():
    random = np.random.default_rng(2)
    times = [
        stats.autocorrelation_time(autocorrelated(random, 4000, 1, 0.9)[:, 0]) for _ in range(5)
    ]
    assert np.mean(times) == pytest.approx(19, rel=0.3)  # (1 + rho) / (1 - rho)
    assert stats.autocorrelation_time(np.ones(50)) == 1


def test_autocorrelation_time_of_all_but_constant_series():
    assert stats.autocorrelation_time(np.full(64, 1e-170) * (1 + 1e-3 * np.arange(64))) >= 1
