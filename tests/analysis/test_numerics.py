"""One axis for loss, gradient norm, lr, scale, step time and memory; jumps, instabilities and the
loss's trend.
"""

import numpy as np
import pytest
from analysis_support import Builder, pack
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_agent import wire
from gputop_analysis.numerics import numerics
from gputop_analysis.spikes import Spike, instabilities, stand_outs
from gputop_analysis.trend import loss_trend
from gputop_analysis.view import RunView


def autocorrelated(count: int, rho: float, random: np.random.Generator) -> np.ndarray:
    """AR(1) noise of unit variance."""
    noise = random.standard_normal(count)
    values = np.empty(count)
    values[0] = noise[0]
    for i in range(1, count):
        values[i] = rho * values[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return values


def trained(path, steps=300, bad=None, **given_columns) -> Builder:
    """A run whose loss decays; ``bad`` maps a step to columns that differ there."""
    random, build = np.random.default_rng(0), Builder(path / "r")
    build.hello(0)
    for step in range(steps):
        columns = {
            "loss": 1 + np.exp(-step / 100) + 0.02 * random.standard_normal(),
            "grad_norm": float(np.exp(0.2 * random.standard_normal())),
            "lr": 1e-3,
            "loss_scale": 1024.0,
        }
        build.step(
            0, forward=5, backward=10, **{**columns, **given_columns, **(bad or {}).get(step, {})}
        )
    return build


def test_values_lie_at_their_steps(tmp_path):
    series = numerics(RunView(trained(tmp_path).open())).series
    assert len(series) == 300
    assert series.step[[0, -1]].tolist() == [0, 299]
    assert series.lr[5] == pytest.approx(1e-3)
    assert series.step_time_ms[7] == pytest.approx(15)
    assert np.isnan(series.step_time_max_ms[0]), "the first step contains the set-up"
    assert series.memory_gib[3] == pytest.approx(300 / 1024)


def test_a_long_run_is_thinned_and_keeps_its_extremes(tmp_path):
    found = numerics(RunView(trained(tmp_path, bad={150: {"loss": 50.0}}).open()), points=60)
    assert len(found.series) == 60
    at = int(np.nanargmax(found.series.loss_max))
    assert found.series.first_step[at] <= 150 <= found.series.step[at]
    assert found.series.loss_max[at] == 50.0
    assert (np.diff(found.series.step) == 5).all()


def test_losses_that_a_gpu_tells_late_are_put_to_their_steps(tmp_path):
    build = trained(tmp_path, loss=float("nan"), grad_norm=float("nan"))
    build.writer.append_rank(
        "device", 0, pack("device", t_end_ns=build.clock[0], step=40, loss=3.5, grad_norm=0.25)
    )
    series = numerics(RunView(build.open())).series
    assert series.loss[40] == 3.5 and series.grad_norm[40] == 0.25
    assert np.isfinite(series.loss).sum() == 1


def test_jumps_of_two_quantities_make_an_instability(tmp_path):
    bad = {200: {"grad_norm": 80.0}, 202: {"loss": 9.0}, 250: {"grad_norm": 90.0}}
    found = numerics(RunView(trained(tmp_path, bad=bad).open()))
    (joint,) = found.instabilities
    assert joint.axes == ("grad_norm", "loss")
    assert (joint.first_step, joint.last_step) == (200, 202)
    assert "grad norm 80 at step 200" in joint.told() and "loss 9 at step 202" in joint.told()
    assert found.marks("grad_norm").tolist() == [200, 250]


def test_a_loss_that_is_no_number_is_marked_once(tmp_path):
    bad = {step: {"loss": float("nan"), "flags": wire.F_NONFINITE} for step in range(120, 140)}
    found = numerics(RunView(trained(tmp_path, bad=bad).open()))
    assert [one.step for one in found.spikes if one.axis == "loss"] == [120]
    assert np.isinf(found.spikes[0].sigmas)


def test_step_time_alone_is_no_instability():
    def spike(axis: str) -> Spike:
        return Spike(axis, 5, 5, 5, 10.0, 1.0, 20.0)

    assert instabilities((spike("memory"), spike("step_time"))) == ()
    assert instabilities((spike("loss"), spike("loss"))) == ()
    assert len(instabilities((spike("loss"), spike("step_time")))) == 1


def test_a_rank_without_steps_has_no_numerics(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(0)
    assert numerics(RunView(build.open())) is None


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(140, 380))
def test_stand_outs_are_the_clear_spikes(seed, at):
    values = np.random.default_rng(seed).normal(10, 0.1, 400)
    values[at] = 30
    assert stand_outs(values, min_relative=0.5)[0].tolist() == [at]


def test_stand_outs_of_constant_and_of_unknown_values():
    assert len(stand_outs(np.full(500, 2.0))[0]) == 0
    assert len(stand_outs(np.full(500, np.nan))[0]) == 0
    assert len(stand_outs(np.zeros(0))[0]) == 0


def test_heavy_tails_rarely_stand_out():
    random = np.random.default_rng(3)
    losses = 2 + 0.1 * random.standard_t(4, (20, 1000))
    assert np.mean([len(stand_outs(one)[0]) for one in losses]) <= 1.0


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_a_flat_loss_is_seldom_called_rising(rho):
    steps, random = np.arange(2000), np.random.default_rng(11)
    trends = [
        loss_trend(steps, steps, 2 + 0.1 * autocorrelated(2000, rho, random)) for _ in range(150)
    ]
    rising = [
        one
        for one in trends
        if one and one.kind == "rising" and one.change > max(0.1, 3 * one.noise)
    ]
    assert len(rising) <= 2


def test_rising_falling_and_still_losses():
    steps, random = np.arange(2000), np.random.default_rng(1)
    noise = 0.05 * autocorrelated(2000, 0.5, random)
    assert loss_trend(steps, steps, 2 + noise + steps / 2000).kind == "rising"
    assert loss_trend(steps, steps, 4 + noise - steps / 2000).kind == "falling"
    assert loss_trend(steps, steps, 2 + 0.1 * noise).kind in ("still", "unclear")
    assert loss_trend(steps[:900], steps[:900], 2 + noise[:900]) is None


def test_only_the_newer_half_counts():
    steps = np.arange(4000)
    losses = np.where(steps < 2000, 4 - steps / 1000, 2 + (steps - 2000) / 2000)
    trend = loss_trend(steps, steps, losses + 0.01 * np.random.default_rng(0).standard_normal(4000))
    assert trend.kind == "rising" and trend.first_step >= 1990


@pytest.mark.parametrize(
    ("axis", "value", "unit", "label"),
    [
        ("step_time", 2046.0, "ms", "2.05 s"),
        ("step_time", 813.4, "ms", "813 ms"),
        ("memory", 30.04, "GiB", "30 GiB"),
        ("loss", 8.125, "", "8.12"),
        ("loss", float("nan"), "", "not a number"),
    ],
)
def test_a_jump_is_labelled_as_one_reads_it(axis, value, unit, label):
    jump = Spike(axis, 0, 7, 7, value, level=0.5, sigmas=9.0, unit=unit)
    assert jump.label() == label
