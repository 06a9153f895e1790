"""The time before the first step: parts that add up, the milestone that says most where two
overlap.
"""

import time

import pytest
from analysis_support import HOST, T0, Builder

from gputop.cli.slow.headless import StartLine
from gputop_analysis.report import Report, as_text
from gputop_analysis.report.data import as_data
from gputop_analysis.startup import split, startup

S = 10**9


def milestone(name, began_s, ended_s=None, **more):
    ended = None if ended_s is None else T0 + round(ended_s * S)
    return {"name": name, "began_ns": T0 + round(began_s * S), "ended_ns": ended, **more}


def seconds(parts):
    return {part.words: part.ns / S for part in parts}


def test_the_parts_add_up_and_the_more_telling_milestone_counts():
    events = [
        milestone("import torch", 1, 4),
        milestone("model", 5, 9, site="train.py:3"),
        milestone("weights", 6, 8),
        milestone("weights", 8.5, 10),
    ]
    parts = split(events, T0, T0 + 12 * S)
    assert seconds(parts) == {
        "other before import torch": 1,
        "import torch": 3,
        "other before model (train.py:3)": 1,
        "model": 1.5,
        "weights": 3.5,
        "other": 2,
    }
    assert [part.name for part in parts if part.under_way] == ["other"]


def test_a_milestone_that_was_not_reached_is_under_way():
    (before, last) = split([milestone("process group", 2)], T0, T0 + 9 * S)
    assert (last.name, last.ns, last.under_way) == ("process group", 7 * S, True)
    assert not before.under_way


@pytest.fixture
def run(tmp_path):
    builder = Builder(tmp_path / "run")
    builder.clock[0] = T0 + 10 * S
    builder.event("startup", pid=7, **milestone("import torch", 0, 2))
    builder.event("startup", pid=100, **milestone("import torch", 1, 3))
    builder.event("startup", pid=100, **milestone("first batch", 9, None))
    builder.event("startup", pid=100, **milestone("first batch", 9, 99))
    builder.event("rank_start", rank=0, pid=100)
    builder.hello()
    builder.step(data=500, forward=1500, backward=900, optimizer=50, other=50)
    return builder


def test_the_first_step_is_split_by_its_phases(run):
    found = startup(run.open(), T0 + 99 * S)
    assert (found.rank, found.done, found.seconds) == (0, True, 13)
    expected = {
        "other before import torch": 1,
        "import torch": 2,
        "other before first batch": 6,
        "first batch": 1.5,
        "first forward": 1.5,
        "first backward": 0.9,
        "first update": 0.05,
        "rest of the first step": 0.05,
    }
    assert seconds(found.parts) == pytest.approx(expected)


def test_report_and_json_have_it(run):
    report = Report(run.open())
    text = " ".join(as_text(report).split())
    assert "start-up 13 s until the first step: other before import torch 1.0 s, import" in text
    data = as_data(report)["startup"]
    assert sum(part["seconds"] for part in data["parts"]) == pytest.approx(data["seconds"])
    assert data["parts"][0] == {
        "name": "other",
        "seconds": 1.0,
        "site": None,
        "before": "import torch",
    }


def test_a_command_without_a_step_says_once_where_the_time_went(run, tmp_path, capsys):
    slow = Builder(tmp_path / "slow")
    slow.event("run_start", t_ns=time.time_ns() - 20 * S)
    line = StartLine(tmp_path / "slow" / "hosts" / HOST, after_s=0)
    line.tick()
    assert capsys.readouterr().err == "", "nothing is known"
    now_s = (time.time_ns() - T0) / S
    slow.event("startup", pid=7, **milestone("import torch", now_s - 19, now_s - 15))
    line = StartLine(tmp_path / "slow" / "hosts" / HOST, after_s=0)
    line.tick()
    line.tick()
    said = capsys.readouterr().err
    assert said.startswith("gputop: no step after 20 s: other before import torch 1.0 s, import ")
    assert said.endswith("import torch 4.0 s, other 15 s so far\n") and said.count("\n") == 1
    trains = StartLine(run.path / "hosts" / HOST, after_s=0)
    trains.tick()
    assert capsys.readouterr().err == "", "a rank trains already"
