"""The list of runs and the comparison of two, as a user drives them."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager

import pytest
from tui_pilot import press, screen_text, settle, started
from tui_support import START_NS, FixedClock, write_run

from gputop.app.runs import RunsApp
from gputop.feed import runs
from gputop.feed.runs import RunsView
from gputop.render.comparison import Difference, differences, whisker
from gputop.render.rows import row_text
from gputop.screens.comparison import ComparisonScreen
from gputop.screens.runs import RunsScreen
from gputop_analysis.stats import Interval
from gputop_probes.runs import newest_runs

HOUR_NS = 3600 * 10**9
FIX = ("python", "train.py", "--workers", "4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with a straggler and a later one without, beside what is no record or a broken one."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "20240101-slow", ranks=2, steps=120, slow_rank=1)
    write_run(root / "20240102-fast", ranks=2, steps=120, start_ns=START_NS + HOUR_NS, command=FIX)
    (root / "20240103-torn").mkdir()
    (root / "20240103-torn" / "run.json").write_text('{"form')
    (root / "20240104-other").mkdir()
    (root / "20240104-other" / "run.json").write_text('{"format": "someone else"}')
    (root / "notes").mkdir()
    return root


@pytest.fixture(autouse=True)
def only_these(folder, monkeypatch):
    monkeypatch.setenv("GPUTOP_RUNS_DIR", str(folder))
    monkeypatch.setattr("gputop_probes.locations.fallback_roots", list)


@asynccontextmanager
async def listed(size=(120, 30)):
    app = RunsApp(clock=FixedClock(START_NS + 3 * HOUR_NS))
    async with app.run_test(size=size) as pilot:
        for _ in range(8):  # one worker lists, one after the other reads what is in sight
            await settle(app, pilot)
        yield app, pilot


def line_of(app, word: str) -> str:
    return next(line for line in screen_text(app).splitlines() if word in line)


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (60, 16)])
async def test_each_run_has_its_line_and_foreign_folders_are_named_so(size):
    async with listed(size) as (app, _):
        lines = screen_text(app).splitlines()
        assert all(len(line) == size[0] for line in lines)
        fast, slow = line_of(app, "2 hours ago"), line_of(app, "3 hours ago")
        assert lines.index(fast) < lines.index(slow), "the newest first"
        assert " 120 " in slow and "20.9" in slow and "15.9" in fast
        assert (" 2 " in slow[20:]) == (size[0] >= 96), "ranks where there is room"
        if size[0] >= 80:
            assert "▲ rank 1 gets" in slow
            assert "JSON" in screen_text(app) and "not a record" in line_of(app, "notes")


async def test_enter_opens_the_run_at_the_cursor_and_a_broken_one_stays_shut():
    async with listed() as (app, pilot):
        await press(app, pilot, "enter")
        assert app.is_running and "cannot be read" in next(iter(app._notifications)).message
        await press(app, pilot, "down", "down", "enter")
    assert app.picked is not None and app.picked.name == "20240101-slow"


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_runs_of_one_script_can_be_told_apart_and_facts_follow_the_list(size):
    async with listed(size) as (app, pilot):
        assert "workers 4 " in line_of(app, "2 hours ago")
        assert "batch 16 " in line_of(app, "3 hours ago")
        await press(app, pilot, "down", "down")
        lines = screen_text(app).splitlines()
        last = max(y for y, line in enumerate(lines) if "foreign" in line or "notes" in line)
        assert lines[last + 2].startswith(" 20240101-slow")
        assert any(line.startswith(" directory") for line in lines)


async def test_many_runs_leave_rows_to_the_facts():
    async with listed((80, 24)) as (app, pilot):
        row = app.screen.view.everything[-1]
        app.screen._show(RunsView((row,) * 60, listed=True))
        await settle(app, pilot)
        assert app.screen.query_one("#facts").size.height == 7


async def test_typing_filters_and_escape_takes_it_back():
    async with listed() as (app, pilot):
        await press(app, pilot, "slash", *"workers")
        assert [row.run.name for row in app.screen.view.shown] == ["20240102-fast"]
        assert "/ workers" in screen_text(app) and "1 of 5" in screen_text(app)
        await press(app, pilot, "x")
        assert "No run has 'workersx'" in screen_text(app)
        await press(app, pilot, "escape")
        assert len(app.screen.view.shown) == 5
        await press(app, pilot, "escape")
    assert app.picked is None


async def test_two_marked_runs_are_compared_with_the_earlier_as_baseline():
    async with listed() as (app, pilot):
        await press(app, pilot, "down", "space")
        assert line_of(app, "2 hours ago").startswith(" ● ")
        await press(app, pilot, "down", "space")
        assert line_of(app, "3 hours ago").startswith(" A ")
        assert line_of(app, "2 hours ago").startswith(" B ")
        first, *_, footer = screen_text(app).splitlines()
        assert "c compares the two" in first and "c compare" in footer and "enter" not in footer
        await press(app, pilot, "c")
        assert isinstance(app.screen, ComparisonScreen)
        text = screen_text(app)
        assert "B is surely faster" in text and "20240101-slow" in text
        await press(app, pilot, "y")
        assert app.clipboard == "gputop diff 20240101-slow 20240102-fast"
        await press(app, pilot, "s")
        assert "regression" in screen_text(app) and "▲ new" in screen_text(app)
        await press(app, pilot, "escape")
        assert isinstance(app.screen, RunsScreen) and len(app.screen.view.marked) == 2


async def test_the_comparison_says_what_gputop_diff_says():
    import gputop_probes.runs as recorded
    from gputop.feed.comparison import read_comparison
    from gputop.render import comparison
    from gputop_analysis.diff import diff_text

    a, b = (recorded.find_run(name) for name in ("20240101-slow", "20240102-fast"))
    compared = read_comparison(a, b)
    shown = " ".join("\n".join(row_text(row) for row in comparison.draw(compared, 110)).split())
    printed = diff_text(compared.diff, 110)
    for phase in compared.diff.speed.phases:
        assert f"{phase.a_ms:.3g}"[:4] in shown
    headline = " ".join(printed.split("\n\n")[0].splitlines()[0].split()[:4])
    assert headline in shown and "gone IN11" in shown and "gone   IN11" in printed
    assert "command" in shown and "workers" in shown


async def test_a_clicked_run_is_chosen_and_opens_at_the_second_click():
    async with listed() as (app, pilot):
        y = screen_text(app).splitlines().index(line_of(app, "3 hours ago"))
        await pilot.click(offset=(20, y))
        await settle(app, pilot)
        assert app.screen.table.chosen.run.name == "20240101-slow" and app.is_running
        await pilot.click(offset=(20, y))
        await settle(app, pilot)
    assert app.picked is not None and app.picked.name == "20240101-slow"


async def test_without_runs_it_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUTOP_RUNS_DIR", str(tmp_path))
    async with listed((80, 24)) as (app, pilot):
        assert "gputop run python train.py" in screen_text(app)
        await press(app, pilot, "enter", "space", "c", "y", "down")
        assert app.is_running


async def test_an_opened_run_goes_to_the_list_and_back(running, folder):
    shown = running._replace(run_dir=folder / "20240101-slow")
    async with started(shown, mode="replay") as (app, pilot):
        await press(app, pilot, "R")
        assert isinstance(app.screen, RunsScreen) and line_of(app, "rank 1 gets")
        assert app.screen.view.marked == (folder / "20240101-slow",)
        await press(app, pilot, "escape")
        assert app.screen is app.main
        await press(app, pilot, "R", "up", "c")
        assert isinstance(app.screen, ComparisonScreen)


async def test_a_live_run_is_not_left_for_another(running, folder):
    shown = running._replace(run_dir=folder / "20240101-slow")
    async with started(shown) as (app, pilot):
        app.open_run = None
        await press(app, pilot, "R", "home", "down", "enter")
        assert app.is_running
        assert "gputop open 20240102-fast" in list(app._notifications)[-1].message


def test_of_many_runs_only_the_newest_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUTOP_RUNS_DIR", str(tmp_path))
    for age_s in range(40):
        manifest = tmp_path / f"run{age_s}" / "run.json"
        manifest.parent.mkdir()
        manifest.write_text("{}")
        os.utime(manifest, (1e9 - age_s, 1e9 - age_s))
    read = []
    monkeypatch.setattr("gputop_probes.runs.read_run", lambda path: read.append(path.name))
    assert newest_runs(3) == [] and read == ["run0", "run1", "run2"]


async def test_the_palette_compares_with_another_run(running, folder):
    shown = running._replace(run_dir=folder / "20240101-slow")
    async with started(shown, mode="replay") as (app, pilot):
        commands = {c.title: c for c in app.get_system_commands(app.screen)}
        assert "Run 20240102-fast" in commands and "Runs (R)" in commands
        commands["Compare with 20240102-fast"].callback()
        await settle(app, pilot)
        assert isinstance(app.screen, ComparisonScreen)
        assert "B is surely faster" in screen_text(app)


def test_a_run_that_moved_is_read_again():
    info = runs.list_all()[1]
    read = runs.read_figures(info)
    view = RunsView().with_runs([info]).with_figures(info.path, read).toggled(info.path)
    assert view.with_runs([info]).everything[0].figures == read
    moved = view.with_runs([info._replace(steps=info.steps + 1)])
    row = moved.everything[0]
    assert row.figures == read and not row.fresh and moved.marked == (info.path,)
    assert view.everything[0].fresh
    assert view.with_runs([]).marked == ()


def test_whatever_fails_inside_a_record_is_one_line(monkeypatch):
    monkeypatch.setattr(runs, "_judged", lambda path: 1 / 0)
    figures = runs.read_figures(runs.list_all()[1]._replace(ranks=3))
    assert figures.health is None and "ZeroDivisionError" in figures.headline


def test_an_interval_stands_on_its_side_of_zero():
    slower = row_text(whisker(Interval(3.0, 2.0, 4.0), 4.0, 21, "high"))
    faster = row_text(whisker(Interval(-3.0, -4.0, -2.0), 4.0, 21, "good"))
    unsure = row_text(whisker(Interval(0.5, -1.0, 2.0), 4.0, 21, "muted"))
    assert slower.index("│") < slower.index("━") and faster.index("●") < faster.index("│")
    assert "┃" in unsure or unsure.index("━") < 10 < unsure.rindex("━")
    assert len(slower) == len(faster) == len(unsure) == 21


@pytest.mark.parametrize("width", [58, 78, 118])
def test_differences_lie_between_the_ends_of_their_scale(width):
    lines = [
        Difference("data", "data", 4.4, 1.9, Interval(-2.5, -2.58, -2.42)),
        Difference("h2d", "h2d", 0.2, 0.2, Interval(0.0, -0.3, 0.3)),
        Difference("rank 0", "", 14.9, 15.0, Interval(0.1, -0.7, 0.9)),
    ]
    head, *rows = (row_text(row) for row in differences("ms a step", lines, width))
    assert all(len(row) <= width for row in (head, *rows))
    assert "−2.58" in head and "+2.58" in head
    assert "−2.50*" in rows[0] and "*" not in rows[1] + rows[2], "only what is sure"
    assert rows[0].startswith("■ data ") and rows[2].startswith("rank 0")
    points = {row.index(".") for row in rows}
    assert len(points) == 1, "points below each other"
    _, _, scale = rows[1].rpartition("  ")[2].strip().partition("━")
    assert "━" + scale == ("━" + scale)[::-1], "as far to either side"


def test_the_verdict_tells_less_time_and_is_not_told_twice():
    import gputop_probes.runs as recorded
    from gputop.feed.comparison import read_comparison
    from gputop.render import comparison

    a, b = (recorded.find_run(name) for name in ("20240101-slow", "20240102-fast"))
    text = "\n".join(row_text(row) for row in comparison.draw(read_comparison(a, b), 118))
    assert " % less time, 1." in text and "% faster" not in text
    assert "\nspeed" not in text and text.count("less time") == 1
    heads = [line for line in text.splitlines() if line.startswith(("ms a step", "Memory"))]
    assert len(heads) == 2 and all(" A " in head and " B " in head for head in heads)
