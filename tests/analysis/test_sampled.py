"""What a report says of steps that were only counted, and of gputop's own cost."""

import math

import pytest
from analysis_support import Builder

from gputop_agent import wire
from gputop_analysis.findings.shares import share_over
from gputop_analysis.overview import OwnCost
from gputop_analysis.report import Report, as_text
from gputop_analysis.sampled import own_cost, sampled
from gputop_analysis.summary import summarise
from gputop_analysis.view import RunView


@pytest.fixture
def record(tmp_path):
    """Windows of four steps whose forward differs, and counted steps with their mean."""
    build = Builder(tmp_path / "r")
    build.hello(0)
    for i in range(60):
        build.step(n_steps=4, forward=0.4 + 0.2 * (i % 2), backward=0.5, flags=wire.F_WINDOW)
        build.step(n_steps=60, forward=0.5, backward=0.5, flags=wire.F_ESTIMATED)
    build.event(
        "own_cost", rank=0, method="windows", cost_us=9.0, low_us=7.0, high_us=10.0, step_us=900.0
    )
    build.event(
        "own_cost", rank=0, method="windows", cost_us=3.0, low_us=2.0, high_us=4.0, step_us=1000.0
    )
    build.end()
    return build.open()


def test_steps_that_were_measured_and_the_interval(record):
    found = sampled(RunView(record))
    assert (found.measured, found.steps) == (240, 3840)
    # share = 0.5 +- 0.05 alternating: standard error 0.05 / sqrt(59)
    assert found.half_width == pytest.approx(1.96 * 0.05 / math.sqrt(59), rel=0.05)


def test_nothing_is_said_where_all_was_measured(tmp_path):
    build = Builder(tmp_path / "r")
    for _ in range(40):
        build.step(forward=1.0)
    build.end()
    assert sampled(RunView(build.open())) is None
    assert own_cost(RunView(build.open())) is None


def test_the_newest_own_cost_counts(record):
    cost = own_cost(RunView(record))
    assert cost == OwnCost(0.003, 0.002, 0.004, 3.0, "windows")
    assert cost.words == "0.3 % of a step, 0.2 to 0.4"


def test_the_thread_beside_the_steps_is_told_where_it_is_known(tmp_path):
    """A training that keeps all cores busy loses about that."""
    build = Builder(tmp_path / "r")
    build.hello(0)
    for _ in range(40):
        build.step(forward=20.0)
    cost = {"method": "clock", "cost_us": 40.0, "step_us": 20_000.0}
    build.event("own_cost", rank=0, **cost)
    assert "its thread" not in as_text(Report(build.open()))
    build.event("own_cost", rank=0, **cost, thread_share=0.0212)
    build.end()
    report = as_text(Report(build.open()))
    assert "gputop    0.2 % of a step; its thread 2.1 % of a core\n" in report


def test_quantiles_of_phases_are_of_measured_steps(record):
    forward = next(phase for phase in summarise(record).phases if phase.name == "forward")
    assert forward.mean_ms == pytest.approx(0.5, rel=1e-3)
    assert forward.p95_ms == pytest.approx(0.6)


def test_the_report_says_both(record):
    text = as_text(Report(record))
    assert "gputop    0.3 % of a step, 0.2 to 0.4" in text
    assert "phases estimated from 240 of 3,840 steps" in text


def test_an_evaluation_inside_a_window_stands_for_itself_alone(tmp_path):
    """Once every 500 steps 500 ms of it lie outside the phases: 1 ms a step, not 15."""
    build = Builder(tmp_path / "r")
    build.hello(0)
    for i in range(60):
        build.step(n_steps=4, forward=0.5, other=0.5 + 0.02 * (i % 3), flags=wire.F_WINDOW)
        build.step(n_steps=60, forward=0.6, other=0.6, flags=wire.F_ESTIMATED)
        if i % 8 == 7:
            flags = wire.F_EVAL | (wire.F_WINDOW if i == 15 else 0)
            build.step(forward=0.5, other=500.0, flags=flags)
    build.end()
    series = RunView(build.open()).per_rank[0]
    share = share_over(series, series.after_set_up, lambda rows: rows["other_ns"])
    rows = series.rows[series.after_set_up]
    assert share.wall_ms == pytest.approx(rows["wall_ns"].sum() / rows["n_steps"].sum() / 1e6)
    assert share.steps == rows["n_steps"].sum()
    assert share.mean_ms == pytest.approx(rows["other_ns"].sum() / share.steps / 1e6, rel=0.02)
    assert 0.5 < share.mean_ms < 2 < share.ms.high, "few evaluations: a wide interval"
    steady = share_over(series, series.steady, lambda rows: rows["other_ns"])
    assert steady.share.value == pytest.approx(0.51, abs=0.01)
    assert steady.wall_ms == pytest.approx(1.19, rel=0.02), "of all steady steps"
