"""Reports of records that are cut short, begin anew or contradict themselves: no untrue sentence,
no failure.
"""

import json
import re

import pytest
from analysis_support import T0, Builder

from gputop_analysis.html import as_html
from gputop_analysis.report import Report, as_data, as_markdown, as_text

HOUR_NS = 3600 * 10**9
RESTARTED = 60 * 10**9


def killed_at_once(build):
    build.event("run_start", command=["python"], pid=1)
    build.event("run_end", exit_code=137, signal=9, duration_s=0.01, oom_kills=0)
    build.end(exit_code=137, signal=9)


def one_step(build):
    for rank in range(2):
        build.hello(rank, world_size=2)
        build.step(rank, forward=3.0, backward=5.0, loss=2.0)
    build.end()


def clock_set_back(build):
    build.hello()
    build.steps(60, forward=5.0)
    build.clock[0] -= HOUR_NS
    build.steps(60, forward=5.0)
    build.end()


def began_anew(build):
    for attempt in range(2):
        build.event(
            "rank_start", rank=0, pid=100 + attempt, record_index=80 * attempt, attempt=attempt
        )
        build.hello(pid=100 + attempt)
        build.steps(80, forward=5.0, backward=9.0)
        if attempt == 0:
            build.next_step[0] = -1
            build.clock[0] += RESTARTED
    build.end()


def lost_a_rank(build):
    for rank in range(3):
        build.hello(rank, world_size=4)
        for _ in range(90 if rank == 2 else 200):
            build.step(rank, forward=5.0, backward=9.0, wait_ms=2.0)
    build.event("rank_lost", rank=2, reason="killed by signal 9", step=89, t_ns=T0 + 10**9)
    build.end(exit_code=1)


def said_nothing(build):
    build.event(
        "hello",
        rank=0,
        world_size=None,
        model=None,
        optimizer=None,
        dataloader=None,
        flags=None,
        env=None,
    )
    build.steps(150, forward=5.0, data=20.0, other=9.0)
    build.end()


def report_of(tmp_path, make):
    build = Builder(tmp_path / "r")
    make(build)
    return Report(build.open())


@pytest.mark.parametrize(
    "make",
    [Builder.end, killed_at_once, one_step, clock_set_back, began_anew, lost_a_rank, said_nothing],
)
def test_every_form_of_the_report_is_made(tmp_path, make):
    report = report_of(tmp_path, make)
    text = as_text(report, width=100, colour=False)
    for form in (text, as_markdown(report), as_html(report)):
        assert not re.search(r" nan\b|=None| None |could not be judged", form)
    data = json.loads(json.dumps(as_data(report), allow_nan=False))
    assert data["duration_s"] >= 0
    assert data["goodput"] is None or all(s >= 0 for s in data["goodput"]["parts_s"].values())


def test_what_a_restart_cost_is_said(tmp_path):
    text = as_text(report_of(tmp_path, began_anew), width=100, colour=False)
    assert "goodput of the session 1.8 % (restarting 96." in text and "1 restart)" in text


def test_ranks_that_wrote_nothing_and_one_that_went_first_are_said(tmp_path):
    report = report_of(tmp_path, lost_a_rank)
    assert "3 of 4 ranks" in as_text(report, width=100, colour=False)
    (ended,) = [one for one in report.findings if one.id == "HC09"]
    assert ended.rank == 2 and "why rank 2 (killed by signal 9) went" in ended.fix


@pytest.mark.parametrize(
    ("parallel", "timed"), [({"fsdp": {"version": 2}}, False), ({"ddp": {}}, True), ({}, False)]
)
def test_collectives_that_no_timer_sees_are_said_to_be_in_the_compute(tmp_path, parallel, timed):
    def sharded(build):
        for rank in range(2):
            build.hello(rank, world_size=2, parallel=parallel)
            for _ in range(40):
                build.step(rank, forward=5.0, backward=9.0, wait_ms=2.0 if timed else None)
        build.end()

    report = report_of(tmp_path, sharded)
    for form in (as_text(report, width=400, colour=False), as_markdown(report), as_html(report)):
        assert ("inside forward and backward is counted as compute" in form) is ("fsdp" in parallel)
