"""The timeline for Perfetto: valid by the trace-event format, each track in the order of time,
whole.
"""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from analysis_support import T0, Builder

from gputop_analysis.timeline import to_timeline

_NEEDED = {
    "X": {"dur", "name"},
    "C": {"args", "name"},
    "i": {"s", "name"},
    "M": {"args", "name"},
    "s": {"id"},
}


@pytest.fixture
def trace(tmp_path):
    builder = Builder(tmp_path / "run")
    for rank in (0, 1):
        builder.hello(rank, world_size=2)
        builder.steps(50, rank, data=6.0, forward=3.0, backward=5.0)
        builder.step(rank, n_steps=10, forward=1.0, wait_ms=2.0, loss=0.5)
    builder.sample("gpu", t_ns=T0 + 10**9, index=0, util_pct=40.0, memory_used_bytes=1 << 30)
    builder.event("exception", t_ns=T0 + 10**8, rank=1, message="a shard is missing")
    builder.end(1)
    traces = tmp_path / "run" / "traces"
    traces.mkdir()
    kernel = {"ph": "X", "ts": 5000.5, "dur": 3.0, "pid": 7, "tid": 1, "name": "gemm"}
    nothing = {"ph": "X", "pid": 7, "tid": 1, "name": "without a time"}
    marks = [
        {"ph": "X", "ts": 1.0, "dur": 9.0, "pid": "Spans", "tid": "PyTorch Profiler", "name": "it"},
        {"ph": "i", "s": "g", "ts": 1.0, "pid": "", "tid": "", "name": "Record Window End"},
    ]
    arrow = {"ph": "s", "ts": 5000.5, "pid": 7, "tid": 1, "name": "ac2g", "id": 3}
    name = {"ph": "M", "ts": 10**12, "pid": 7, "name": "process_name", "args": {"name": "python"}}
    events = [kernel, nothing, "no event", *marks, arrow, {**name, "tid": 0}]
    profile = {"baseTimeNanoseconds": T0 + 10**8, "traceEvents": events}
    for rank in (0, 1):
        (traces / f"rank-0000{rank}-step-9.trace.json").write_text(json.dumps(profile))
    (traces / "odd.trace.json").write_text('{"baseTimeNanoseconds": "noon", "traceEvents": [{}]}')
    (traces / "torn.trace.json").write_text('{"traceEvents": [')
    return json.loads("\n".join(to_timeline(builder.open())))


def test_every_event_has_what_the_format_wants(trace) -> None:
    assert trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert {"ph", "ts", "pid", "tid", "name"} | _NEEDED[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ts"] >= 0 and event.get("dur", 0) >= 0


def test_each_track_is_in_the_order_of_time_and_slices_do_not_overlap(trace) -> None:
    ends: dict[tuple[object, ...], float] = defaultdict(float)
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        name = event["name"] if event["ph"] == "C" else ""
        track = (event["pid"], event["tid"], event["ph"], name)
        assert event["ts"] >= ends[track] - 0.002, event
        ends[track] = event["ts"] + event.get("dur", 0)


def test_ranks_are_processes_with_steps_phases_and_counters(trace) -> None:
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[0] == "rank 0 (box)" and names[1] == "rank 1 (box)"
    slices = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    steps = [e for e in slices if e["tid"] == 1]
    assert len(steps) == 51 and steps[-1]["name"] == "steps 50 to 59"
    phases = sum(e["dur"] for e in slices if e["tid"] == 2)
    assert phases == pytest.approx(sum(e["dur"] for e in steps), rel=1e-6)
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert {"RSS GiB", "loss", "wait ms", "util_pct", "memory GiB"} <= counters


def test_findings_and_events_are_instants(trace) -> None:
    instants = [e for e in trace["traceEvents"] if e["ph"] == "i"]
    assert any(e["name"] == "exception" and e["pid"] == 1 for e in instants)
    assert any("fix" in e.get("args", {}) for e in instants)


def test_a_profile_lies_on_the_same_clock(trace) -> None:
    kernel, other = [e for e in trace["traceEvents"] if e["name"] == "gemm"]
    assert other["pid"] > kernel["pid"] >= 2_000_000
    began_us = (T0 - trace["otherData"]["start_unix_ns"]) / 1000
    assert kernel["ts"] == pytest.approx(began_us + 100_000 + 5000.5)


def test_profiles_of_several_ranks_are_told_apart(trace) -> None:
    """By name, and no arrow goes from one to the other."""
    events = trace["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(named) == {event["pid"] for event in events}
    assert [named[e["pid"]] for e in events if e["name"] == "gemm"] == [
        "rank-00000-step-9: python",
        "rank-00001-step-9: python",
    ]
    arrows = [event["id"] for event in events if event["ph"] == "s"]
    assert len(arrows) == len(set(arrows)) == 2


def test_the_command_writes_it(tmp_path, capsys) -> None:
    from gputop.cli import main

    builder = Builder(tmp_path / "run")
    builder.hello()
    builder.steps(5, forward=3.0)
    file = tmp_path / "run.perfetto.json"
    assert main(["export", str(tmp_path / "run"), "--format", "perfetto", "-o", str(file)]) == 0
    assert len(json.loads(file.read_text())["traceEvents"]) > 10
