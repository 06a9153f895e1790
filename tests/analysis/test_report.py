"""What the report, the exports, the verdict and the calibration say."""

import csv
import json
import math

import pytest
from analysis_support import T0, Builder

from gputop_agent import wire
from gputop_analysis.calibrate import stable
from gputop_analysis.export import to_csv, to_json
from gputop_analysis.findings import evaluate
from gputop_analysis.html import as_html
from gputop_analysis.report import Report, as_markdown, as_text, report_data
from gputop_analysis.summary import summarise
from gputop_analysis.text import bar, sparkline
from gputop_analysis.trial import timing
from gputop_analysis.verdict import verdict
from gputop_analysis.view import RunView
from gputop_analysis.win import mean_step_ms

TOP = (
    "command exit_code world_size steps step_time_p50_ms step_time_p95_ms phases_mean_ms ranks "
    "gpus findings context state duration_s total_steps "
    "steps_per_s samples_per_s tokens_per_s verdict"
)
VERDICT = (
    "health headline bottleneck confidence why do_first finding rank site recoverable_ms_per_step "
    "interval_ms_per_step recoverable_hours recoverable_usd"
)
RANK = (
    "step_time_mean_ms rank host steps step_time_p50_ms step_time_p95_ms phases_mean_ms "
    "wait_mean_ms peak_allocated_gib peak_reserved_gib peak_rss_gib dropped_records slowest_share "
    "comm_share excess_phase excess_ms"
)
GPU = "index name memory_total_gib peak_used_gib util_mean_pct power_mean_w added"
FINDING = (
    "id name severity rank host site title evidence fix confidence recoverable_ms_per_step "
    "interval_ms_per_step recoverable_hours recoverable_usd absorbed_by gpu absorbed proof"
)


@pytest.fixture
def build(tmp_path):
    """Two ranks, input-bound, with one GPU that tells its memory only."""
    build = Builder(tmp_path / "r", command=("torchrun", "train.py", "--naïve"))
    build.state["context"] = {"git_commit": "abc123"}
    for rank in (0, 1):
        build.hello(
            rank,
            world_size=2,
            dataloader={"num_workers": 0, "site": "train.py:41"},
            total_steps=1000,
        )
        for step in range(150):
            build.step(
                rank, wait_ms=0.1, data=10.0, forward=5.0, backward=9.0, loss=3.0 - step / 100
            )
    build.sample("gpu", t_ns=T0, index=0, memory_used_bytes=3 << 30, memory_total_bytes=80 << 30)
    build.end()
    return build


def test_speed_and_step_of_an_ended_run_are_over_the_same_named_steps(tmp_path):
    build = Builder(tmp_path / "warming-up")
    build.hello()
    for step in range(60):  # a warm-up that is much slower than the rest
        build.step(forward=200.0 if step < 10 else 20.0, samples=8)
    assert summarise(build.open(), now_ns=build.clock[0]).steps_per_s < 40  # all of the last 10 s
    build.end()
    summary = summarise(build.open())
    assert mean_step_ms(summary) == pytest.approx(20.0)
    assert (summary.steps_per_s, summary.samples_per_s) == pytest.approx((50.0, 400.0))
    report = Report(build.open())
    for text in (as_text(report), as_markdown(report), as_html(report)):
        assert text.count("past the first 10 steps") >= 1
        assert "of all steps, the first ones too" in text  # what the budget's lines are of


@pytest.mark.parametrize(
    ("parallel", "messages", "samples_per_s"),
    [
        ({"ddp": True}, False, 1600.0),
        ({"mesh": {"names": ["pp"], "shape": [2]}}, True, 800.0),
        ({"mesh": {"names": ["dp", "tp"], "shape": [1, 2]}}, False, 800.0),
        ({}, True, 0.0),
    ],
    ids=["data parallel", "pipeline", "tensor parallel", "a pipeline by hand"],
)
def test_ranks_that_train_on_one_batch_count_it_once(tmp_path, parallel, messages, samples_per_s):
    build = Builder(tmp_path / "r")
    for rank in (0, 1):
        build.hello(rank, world_size=2, parallel=parallel)
        for _ in range(60):
            build.step(rank, forward=10.0, samples=8)
        entries = [{"p2p": messages, "op": "send" if messages else "all_reduce", "seq": 0}]
        build.event("flight_recorder", rank=rank, entries=entries)
    build.end()
    assert summarise(build.open()).samples_per_s == pytest.approx(samples_per_s)
    trial = timing(RunView(build.open()))
    assert trial is not None and trial.samples_per_s == pytest.approx(samples_per_s)


def test_a_step_of_many_backwards_says_how_long_each_is(tmp_path):
    """LBFGS asks its closure 1,652 times in one step: 0.0075 steps/s say nothing."""
    build = Builder(tmp_path / "r")
    build.hello()
    build.step(forward=1000.0, backward=4000.0, micro_batches=1000)
    build.end()
    assert "1,000 backwards a step, 5.00 ms each" in as_text(Report(build.open()))


@pytest.mark.parametrize(
    ("steps", "words"),
    [(5, "of all steps"), (25, "past the first step"), (60, "past the first 10 steps")],
)
def test_a_short_run_leaves_out_less_of_its_beginning(tmp_path, steps, words):
    build = Builder(tmp_path / "r")
    build.hello()
    build.steps(steps, forward=20.0)
    build.end()
    assert summarise(build.open()).averaged_over == words


def no_nan(text):
    raise AssertionError(f"{text} is no JSON")


def test_json_names_are_the_contract_and_every_number_is_finite(build):
    text = json.dumps(report_data(build.open()), allow_nan=False)
    data = json.loads(text, parse_constant=no_nan)
    assert set(data) >= set(TOP.split())
    assert set(data["verdict"]) == set(VERDICT.split())
    assert tuple(data["phases_mean_ms"]) == wire.PHASES
    assert [set(rank) for rank in data["ranks"]] == [set(RANK.split())] * 2
    assert [set(gpu) for gpu in data["gpus"]] == [set(GPU.split())]
    assert [set(one) for one in data["findings"]] == [set(FINDING.split())] * 2
    assert [(one["id"], one["severity"], one["absorbed_by"]) for one in data["findings"]] == [
        ("IN02", "high", None),
        ("IN01", "info", "IN02"),
    ]
    assert (data["steps"], data["world_size"], data["exit_code"]) == (150, 2, 0)
    assert data["gpus"][0]["power_mean_w"] is None
    assert data["ranks"][0]["peak_allocated_gib"] is None
    assert data["context"] == {"git_commit": "abc123"}
    assert data["phases_mean_ms"]["data"] == pytest.approx(10)


def test_own_work_and_lost_output_have_their_own_figures(tmp_path):
    build = Builder(tmp_path / "r")
    build.hello(0)
    build.step(0, flags=wire.F_FIRST | wire.F_AGENT, other=100.0, forward=5.0, agent_ns=80_000_000)
    for step in range(60):
        build.step(0, forward=5.0, backward=9.0, other=1.0, agent_ns=250_000 if step == 20 else 0)
    build.state["output_losses"] = {"missing": 10, "given_up": 4096, "not_passed_on": 0}
    build.end()
    data, text = report_data(build.open()), as_text(Report(build.open()))
    assert data["own_work"] == {"set_up_ms": 80.0, "later_ms": 0.25}
    assert data["output_lost_bytes"] == {"missing": 10, "given_up": 4096, "not_passed_on": 0}
    assert "gputop    its own set-up took 80.0 ms, once, and 0.25 ms later" in text


def test_json_of_a_run_without_a_step(tmp_path):
    data = report_data(Builder(tmp_path / "r").open())
    assert json.loads(json.dumps(data, allow_nan=False))["step_time_p50_ms"] is None
    assert data["ranks"] == data["findings"] == []


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_text_fits_its_width(build, width, colour):
    import re

    text = as_text(Report(build.open()), width, colour)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert [line for line in plain.splitlines() if len(line) > width] == []
    assert text.isascii() is not colour
    for said in ("ended: 150 steps, exit 0", "data", "IN02", "num_workers=", "loss", "wins back"):
        assert said in plain


def test_csv_has_one_line_a_record_and_exact_phases(build):
    rows = list(csv.DictReader(to_csv(build.open())))
    assert len(rows) == 300
    assert {row["rank"] for row in rows} == {"0", "1"}
    for row in rows[::50]:
        assert sum(float(row[f"{name}_ms"]) for name in wire.PHASES) == pytest.approx(
            float(row["wall_ms"]), abs=1e-5
        )
        assert row["allocated_bytes"] == ""  # not measured, and so empty
    assert len(list(to_csv(build.open(), rank=1))) == 151


def test_json_export_holds_hello_and_events(build):
    data = json.loads(to_json(build.open()), parse_constant=no_nan)
    assert data["hello"]["1"]["dataloader"]["site"] == "train.py:41"
    assert {event["type"] for event in data["events"]} == {"hello"}


def judged(build, now_s=0.0, **options):
    record = build.open()
    now_ns = max((int(record.steps(rank)["t_end_ns"][-1]) for rank in record.ranks()), default=T0)
    return verdict(summarise(record, now_ns=now_ns + int(now_s * 1e9)), evaluate(record))


def test_verdicts_from_start_to_end(tmp_path):
    build = Builder(tmp_path / "r")
    assert judged(build).headline == "waiting for the first step"
    build.steps(5, forward=3.0)
    assert judged(build).health == "waiting"
    build.steps(100, forward=30.0, backward=60.0, optimizer=10.0)
    assert judged(build).headline.startswith("healthy: backward 6")
    build.steps(400, forward=30.0, data=30.0)
    assert judged(build).headline.startswith("input-bound: data wait takes")
    assert judged(build, now_s=100).health == "failed"  # the recorder went silent
    build.end()
    assert judged(build).headline.startswith("ended: 505 steps, exit 0; input-bound")


def test_verdict_of_a_run_that_the_agent_is_not_in(tmp_path):
    build = Builder(tmp_path / "r")
    build.event(
        "no_agent", pid=7, host="h", reason="python was started with -I, which ignores PYTHONPATH"
    )
    said = (
        "no step can be seen, as the agent is not in process 7: python was started with -I, "
        "which ignores PYTHONPATH"
    )
    assert judged(build) == ("attention", said)
    build.end()
    assert judged(build).headline == f"ended: 0 steps, exit 0; {said}"


def test_verdict_of_a_killed_run(tmp_path):
    build = Builder(tmp_path / "r")
    build.steps(50, forward=3.0)
    build.end(exit_code=137)
    assert judged(build).headline == "ended: 50 steps, exit 137: ended by SIGKILL"
    assert judged(build).health == "failed"


def test_calibration_waits_for_steps_then_is_stable(tmp_path):
    build = Builder(tmp_path / "r")
    build.steps(60, forward=10.0)
    early = stable(build.open())
    assert not early.stable
    assert "steady steps" in early.reasons[0]
    build.steps(200, forward=10.0, seed=1)
    assert stable(build.open()) == stable(build.open())
    assert stable(build.open()).stable, stable(build.open()).reasons


def test_calibration_refuses_drift_and_growth(tmp_path):
    build = Builder(tmp_path / "r")
    for step in range(300):
        build.step(forward=10.0 + step / 10, rss_bytes=(400 + 3 * step) << 20)
    reasons = " ".join(stable(build.open()).reasons)
    assert "step time" in reasons
    assert "memory" in reasons


@pytest.mark.parametrize(
    ("share", "text"), [(0, "    "), (0.5, "##  "), (1, "####"), (7, "####"), (math.nan, "    ")]
)
def test_bar(share, text):
    assert bar(share, 4, fancy=False) == text
    assert len(bar(share, 4, fancy=True)) == 4


def test_sparkline_means_its_parts():
    assert sparkline([1, 1, 9, 9], 2, fancy=False) == "_#"
    assert sparkline([5, 5, 5], 3, fancy=True) == "▄▄▄"
    assert sparkline([math.nan], 5, fancy=True) == ""
