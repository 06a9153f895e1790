"""Every number of a report can be traced, and so can every finding."""

import json

import fault_cases
import numpy as np
import pytest
from analysis_support import T0, Builder

from gputop_agent import wire
from gputop_analysis.explain import NotInReport, explain, explain_data, overview
from gputop_analysis.findings import CATALOGUE
from gputop_analysis.findings.note import CPU, PAIR
from gputop_analysis.report import Report, as_data
from gputop_analysis.report.definitions import DEFINITIONS
from gputop_analysis.report.figures import definition, figures, numbers


@pytest.fixture
def report(tmp_path):
    """Two ranks on a GPU that tells everything, held up by their loader; a record stands for 8
    steps.
    """
    build = Builder(tmp_path / "r")
    build.state["gpus"] = [{"index": 3, "name": "NVIDIA H100 80GB HBM3"}]
    sizes = {"peak_allocated_bytes": 2 << 30, "reserved_bytes": 3 << 30}
    random = np.random.default_rng(0)
    for rank in (0, 1):
        build.hello(
            rank,
            world_size=2,
            dataloader={"num_workers": 0, "site": "train.py:41"},
            total_steps=5000,
        )
        for i in range(150):
            times = {
                "data": 10.0,
                "forward": 5.0,
                "backward": 9.0,
                "loss": 3.0 - i / 100 + 0.1 * random.normal(),
            }
            flags = wire.F_ESTIMATED if i % 2 else wire.F_WINDOW
            build.step(
                rank, n_steps=8, wait_ms=0.1, samples=64, tokens=4096, flags=flags, **times, **sizes
            )
        build.event(
            "own_cost",
            rank=rank,
            method="windows",
            cost_us=50.0,
            low_us=40.0,
            high_us=60.0,
            step_us=25e3,
        )
    used = {"memory_used_bytes": 3 << 30, "memory_total_bytes": 80 << 30}
    for second in range(20):
        energy_mj = 300_000 * (1 + second)
        at = {"t_ns": T0 + second * 10**9, "index": 3, "energy_mj_total": energy_mj}
        build.sample("gpu", util_pct=70.0, power_w=300.0, **used, **at)
    build.end()
    return Report(build.open())


def test_every_number_of_the_report_has_a_definition(report):
    data = as_data(report)
    undefined = [name for name, _ in numbers(data) if definition(name) is None]
    assert undefined == []
    measured = {one.name: one.value for one in figures(report)}
    assert measured["step_time_p50_ms"] == data["step_time_p50_ms"]
    assert measured["ranks.1.wait_mean_ms"] == pytest.approx(0.1)
    assert measured["gpus.3.power_mean_w"] == 300.0
    assert all(one.definition and one.source and one.read for one in figures(report))


def test_no_definition_is_of_something_that_no_report_has(report):
    stars = {DEFINITIONS[key].text for key in DEFINITIONS}
    used = {one.definition for one in figures(report)}
    assert stars - used == set()


def test_a_raised_finding_shows_what_it_rests_on(report):
    said = explain(report, "in02", width=90)
    for part in (
        "IN02 single-process loader: high",
        "wins back",
        "raised",
        "silent",
        "covers    IN01 input-bound",
    ):
        assert part in said
    assert max(map(len, said.splitlines())) <= 90
    data = json.loads(json.dumps(explain_data(report, "IN02"), allow_nan=False))
    assert data["findings"][0]["id"] == data["catalogue"]["id"] == "IN02"


def test_one_that_was_taken_in_says_by_what(report):
    assert explain(report, "IN01").startswith("IN01 input-bound: taken in by IN02")


def test_one_that_was_not_raised_says_when_it_would_be(report):
    said = explain(report, "NU01")
    assert said.startswith("NU01 non-finite loss: not raised in this run")
    assert CATALOGUE["NU01"].trigger in " ".join(said.split())


def test_a_figure_by_its_name_or_the_end_of_it(report):
    assert explain(report, "step_time_p50_ms").splitlines()[0].startswith("step_time_p50_ms = 24")
    assert "300 records for 2,400 steps, 2 ranks" in explain(report, "step_time_p50_ms")
    assert explain(report, "peak_allocated_gib").count("= 2 GiB") == 2
    assert "ranks.1." not in explain(report, "ranks.0")
    assert "150 records for 1,200 steps, rank 1" in explain(report, "ranks.1.step_time_p95_ms")


def test_an_unknown_name_is_refused_with_the_nearest(report):
    with pytest.raises(NotInReport, match="did you mean step_time_p50_ms"):
        explain(report, "step_time_p50")
    with pytest.raises(NotInReport, match="did you mean IN"):
        explain(report, "IN0")


def test_the_overview_lists_findings_and_figures(report):
    said = overview(report, 80)
    assert "  IN02  " in said
    assert "verdict.confidence" in said
    assert max(map(len, said.splitlines())) <= 80


def test_an_empty_record_has_figures_too(tmp_path):
    empty = Report(Builder(tmp_path / "r").open())
    assert [name for name, _ in numbers(as_data(empty)) if definition(name) is None] == []
    assert "  none" in overview(empty, 80)


def test_every_finding_has_its_small_print():
    for spec in CATALOGUE.values():
        assert spec.reads and spec.silent and spec.traps, spec.id


def test_what_is_said_to_be_seen_in_a_training_is_a_case_of_the_fault_suite():
    seen = {id for case in fault_cases.cases() for id in (case.id, *case.absorbed)}
    compared = {case.id for case in fault_cases.cases() if case.baseline}
    assert {spec.id for spec in CATALOGUE.values() if spec.seen_on == CPU} == seen - compared
    assert {spec.id for spec in CATALOGUE.values() if spec.seen_on == PAIR} == compared
