"""Feeds: a record that grows, one that disappears, one that is replayed."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
from tui_support import START_NS, STEP_MS, FixedClock, step_row, write_run

from gputop.feed.build import build
from gputop.feed.cut import cut, span
from gputop.feed.live import ENDED_LOOK_S, LiveFeed
from gputop.feed.replay import ReplayFeed
from gputop.feed.snapshot import first_snapshot
from gputop.feed.timeline import timeline
from gputop.widgets.step_chart import PARTS, parted
from gputop_agent.wire import PHASES
from gputop_probes.record.reader import RunRecord
from gputop_probes.record.writer import RecordWriter


def append(folder, first, count, at_ns, rank=0):
    writer = RecordWriter(folder, "box")
    rows = [step_row(rank, first + i, at_ns + i * 16_000_000, STEP_MS) for i in range(count)]
    writer.append_rank("steps", rank, b"".join(rows))
    writer.close()


def test_the_live_feed_follows_and_counts(tmp_path):
    clock = FixedClock(START_NS + 9 * 10**9)
    feed = LiveFeed(write_run(tmp_path / "r", steps=100, state="running"), clock)
    assert feed.first().summary.command == ("python", "train.py", "--batch", "16")
    first = feed.take()
    assert (
        first.summary.steps == 100 and first.summary.state == "running" and first.verdict.headline
    )
    append(tmp_path / "r", 100, 25, clock.now_ns())
    clock.advance(1)
    second = feed.take()
    assert second.summary.steps == 125 and second.sequence == first.sequence + 1


def test_an_ended_run_that_does_not_change_costs_nothing_more(tmp_path):
    feed = LiveFeed(write_run(tmp_path / "r", steps=60), FixedClock())
    first = feed.take()
    assert first.ended and feed.take() is first


def test_files_of_an_ended_run_are_looked_at_rarely(tmp_path, monkeypatch):
    clock = FixedClock()
    feed = LiveFeed(write_run(tmp_path / "r", steps=60), clock)
    first, looks = feed.take(), []
    refresh = RunRecord.refresh
    monkeypatch.setattr(RunRecord, "refresh", lambda self: looks.append(self) or refresh(self))
    for _ in range(9):
        clock.advance(ENDED_LOOK_S / 10)
        assert feed.take() is first
    assert len(looks) == 1, "what came with the end is seen, then the files rest"
    append(tmp_path / "r", 60, 5, clock.now_ns())
    clock.advance(ENDED_LOOK_S)
    assert feed.take().summary.steps == 65


def test_a_record_that_disappears_leaves_the_last_picture(tmp_path):
    feed = LiveFeed(
        write_run(tmp_path / "r", steps=60, state="running"), FixedClock(START_NS + 5 * 10**9)
    )
    before = feed.take()
    shutil.rmtree(tmp_path / "r")
    after = feed.take()
    assert "is gone" in after.problem and after.summary == before.summary
    assert feed.take() is after


def test_a_folder_that_is_no_record_is_a_problem_in_words(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    snapshot = LiveFeed(tmp_path, FixedClock()).take()
    assert "was not written by gputop" in snapshot.problem


@pytest.mark.parametrize("content", [None, "", "[]", '{"command": 3}', "\x00"])
def test_the_first_snapshot_never_raises(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    snapshot = first_snapshot(tmp_path, 5)
    assert snapshot.summary.command == () and snapshot.verdict.health == "waiting"


def test_hours_after_its_recorder_was_lost_a_run_still_has_its_timeline(tmp_path):
    record = RunRecord.open(write_run(tmp_path / "lost", steps=100, state="running"))
    shown = build(record, (), window_steps=500, now_ns=START_NS + 3600 * 10**9)
    assert shown.summary.state == "lost" and shown.timeline.bin_s < 1.0
    assert math.isfinite(shown.timeline.step_ms[-1])


def test_the_timeline_counts_every_step_once_and_shows_where_the_run_stood(tmp_path):
    folder = write_run(tmp_path / "r", steps=300, state="running")
    rows = RunRecord.open(folder).steps(0)
    began, ended = int(rows["t_end_ns"][0] - rows["wall_ns"][0]), int(rows["t_end_ns"][-1])
    line = timeline(RunRecord.open(folder), ended + 5 * 10**9)
    assert sum(line.steps) == pytest.approx(300)
    mean = np.nansum(np.array(line.phases_ms) * np.array(line.steps)[:, None], axis=0) / 300
    for name, value in zip(PHASES, mean.tolist(), strict=True):
        assert value == pytest.approx(rows[f"{name}_ns"].mean() / 1e6), name
    standing = [value != value for value in line.step_ms]
    assert sum(standing) * line.bin_s == pytest.approx(5, abs=3 * line.bin_s) and standing[-1]
    assert len(line.steps) * line.bin_s >= (ended - began) / 1e9


def test_waiting_is_one_part_and_nothing_is_lost(tmp_path):
    """3 ms inside backward and 0.6 ms in collectives that the script calls."""
    folder = write_run(tmp_path / "r", ranks=2, slow_rank=1, steps=300)
    line = timeline(RunRecord.open(folder), START_NS)
    backward, wait = list(PARTS).index("backward"), list(PARTS).index("wait")
    columns = parted(line)
    for column, phases in zip(columns, line.phases_ms, strict=True):
        assert sum(column) == pytest.approx(sum(phases), nan_ok=True)
    middle = columns[len(columns) // 2]
    assert middle[wait] == pytest.approx(3.6, abs=0.1) and middle[backward] == pytest.approx(
        6.9, abs=0.8
    )


def test_a_cut_holds_nothing_from_later(tmp_path):
    record = RunRecord.open(write_run(tmp_path / "r", ranks=2, steps=200))
    start, end = span(record)
    middle = (start + end) // 2
    part = cut(record, middle)
    for rank in (0, 1):
        steps = part.steps(rank)
        assert (
            0 < len(steps) < 200
            and steps["t_end_ns"][-1] <= middle < record.steps(rank)["t_end_ns"][len(steps)]
        )
    assert part.hosts["box"].state.state == "running" and part.hosts["box"].state.exit_code is None
    assert all(event["t_ns"] <= middle for event in part.events())
    assert cut(record, end).hosts["box"].state.state == "ended"
    assert part.ranks() and cut(record, start).ranks() == []


def test_replay_plays_seeks_and_stops_at_the_end(tmp_path):
    clock = FixedClock()
    feed = ReplayFeed(write_run(tmp_path / "r", steps=300), clock)
    assert feed.take().ended  # where the verdict is
    feed.toggle()
    clock.advance(3)
    playing = feed.take()
    assert (
        0 < playing.summary.steps < 300
        and playing.position.playing
        and playing.summary.state == "running"
    )
    feed.change_speed(2.0)
    before = playing.position.at_ns
    clock.advance(1)
    assert feed.take().position.at_ns - before == pytest.approx(2e9, rel=1e-6)
    clock.advance(1000)
    at_end = feed.take()
    assert not at_end.position.playing and at_end.summary.steps == 300 and at_end.ended
    feed.seek(-0.5)
    back = feed.take()
    assert (
        back.position.share == pytest.approx(0.5, abs=0.01)
        and back.summary.steps < 300
        and not back.ended
    )
    assert feed.take() is back
    feed.toggle()
    clock.advance(0.5)
    assert feed.take().position.at_ns > back.position.at_ns
    feed.seek_to(1.0)
    feed.toggle()
    feed.toggle()
    assert feed.take().position.at_ns == feed.take().position.start_ns


def test_the_demo_begins_in_the_middle_plays_fast_and_goes_round(tmp_path):
    clock = FixedClock()
    feed = ReplayFeed(write_run(tmp_path / "r", steps=300), clock, play=True)
    first = feed.take()
    assert first.position.share == pytest.approx(0.4) and 0 < first.summary.steps < 300
    clock.advance(0.5)
    assert feed.take().position.at_ns - first.position.at_ns == pytest.approx(2e9, rel=1e-6)
    clock.advance(1000)
    again = feed.take()
    assert again.position.playing and again.position.at_ns == first.position.at_ns


def test_replay_of_a_missing_record_says_so(tmp_path):
    snapshot = ReplayFeed(tmp_path / "none", FixedClock()).take()
    assert "no run record" in snapshot.problem
    assert snapshot._replace(problem="").summary.steps == 0
