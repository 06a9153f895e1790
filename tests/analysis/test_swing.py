"""A cosine schedule that goes back up, and schedules that look like it."""

from __future__ import annotations

import numpy as np
import pytest
from analysis_support import Builder

from gputop_analysis.findings import evaluate
from gputop_analysis.findings.numerics.rate_swings import swing_of

STEPS = np.arange(6000)


def cosine(length):
    return 1e-3 * (1 + np.cos(np.pi * STEPS / length)) / 2


@pytest.mark.parametrize("length", [2, 25, 301, 1000])
def test_the_period_of_a_swing(length):
    swing = swing_of(STEPS, cosine(length))
    assert swing is not None and swing.period == 2 * length


@pytest.mark.parametrize("warm_up", [0, 300])
def test_a_rate_that_comes_back_once(warm_up):
    rates = np.minimum(1.0, (STEPS + 1) / (warm_up + 1)) * cosine(2800)
    swing = swing_of(STEPS, rates)
    assert swing is not None and swing.period == pytest.approx(5600, abs=30)


def test_readings_that_lag_hide_no_swing():
    rates = cosine(100)
    rates[1::3] = rates[0:-1:3]  # a record repeats the reading before it
    swing = swing_of(STEPS, rates)
    assert swing is not None and swing.period == 200


def test_few_readings_must_fit_exactly():
    few = np.array([0, 1, 13, 27, 42, 56, 71, 85, 100, 114, 128, 129, 210, 261])
    swing = swing_of(few, cosine(25)[few])
    assert swing is not None and swing.period == 50
    triangle = np.abs((few % 50) / 25 - 1)
    assert swing_of(few, triangle) is None


@pytest.mark.parametrize(
    "rates",
    [
        cosine(6000),
        np.tile(cosine(6000)[::30], 30),  # warm restarts
        1e-3 * np.abs((STEPS % 200) / 100 - 1),
        2e-4 + cosine(100),
        1e-3 * 0.97**STEPS,
        np.minimum(STEPS / 100, 1.0) * cosine(6000),
        1e-3 - cosine(3000),
        1e-3 * np.abs(STEPS / 3000 - 1),
        np.full(6000, 1e-3),
        np.full(6000, np.nan),
        np.random.default_rng(0).random(6000),
    ],
    ids=[
        "once",
        "restarts",
        "triangle",
        "floor",
        "decay",
        "warm-up",
        "one cycle",
        "down and up in lines",
        "constant",
        "unread",
        "random",
    ],
)
def test_other_schedules_do_not_swing(rates):
    assert swing_of(STEPS, rates) is None


def test_the_fix_names_the_length_that_was_given(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello()
    for rate in cosine(25)[:200]:
        build.step(forward=3.0, backward=6.0, lr=rate)
    told = {one.id: one for one in evaluate(build.open())}["NU15"]
    assert "T_max=25" in told.fix and told.severity == "medium"


@pytest.mark.parametrize("swings", [3, 4, 7.3])
def test_swings_that_are_no_whole_steps_long(swings):
    steps = np.arange(340)
    rates = 2e-3 * (1 + np.cos(2 * np.pi * swings * steps / 340)) / 2
    swing = swing_of(steps, rates)
    assert swing is not None and swing.period == pytest.approx(340 / swings, abs=1)


def test_the_rates_of_two_optimizers_in_turn_are_no_swing():
    steps = np.arange(320)
    assert swing_of(steps, np.where(steps % 32 < 16, 2e-3, 0.1)) is None
