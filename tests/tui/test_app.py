"""The app as a user drives it: keys, panels, pause, export, leaving."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.command import CommandList
from textual.content import Content
from textual.widgets import Input
from tui_pilot import press, screen_text, settle, started, step
from tui_screens import Stage, recording_of_another_tool
from tui_support import FakeControl

from gputop.actions import ACTIONS, OF_THE_APP, Action, on_screen, target
from gputop.app.application import GputopApp
from gputop.feed.snapshot import first_snapshot
from gputop.screens.budget import BudgetScreen
from gputop.screens.catalog import CatalogScreen
from gputop.screens.comparison import ComparisonScreen
from gputop.screens.dialog import ChoiceDialog, TextDialog, Words
from gputop.screens.estimator import EstimatorScreen
from gputop.screens.evidence import EvidenceScreen
from gputop.screens.layers import LayersScreen
from gputop.screens.main import MainScreen
from gputop.screens.memory import MemoryScreen
from gputop.screens.numerics import NumericsScreen
from gputop.screens.ranks import RanksScreen
from gputop.screens.runs import RunsScreen
from gputop.screens.strategy import StrategyScreen
from gputop.screens.topology import TopologyScreen
from gputop.widgets.body import Body
from gputop.widgets.findings import Findings
from gputop.widgets.header import Header
from gputop.widgets.history import HistoryPanel
from gputop.widgets.output import Output
from gputop.widgets.ranks import Ranks
from gputop_probes.stop import ESCALATION_WINDOW_S

PAGES = {
    "evidence": EvidenceScreen,
    "layers": LayersScreen,
    "numerics": NumericsScreen,
    "budget": BudgetScreen,
    "ranks": RanksScreen,
    "estimator": EstimatorScreen,
    "strategy": StrategyScreen,
    "catalog": CatalogScreen,
    "topology": TopologyScreen,
    "runs": RunsScreen,
    "comparison": ComparisonScreen,
    "memory": MemoryScreen,
}
OF_PANELS = {"findings": Findings, "history": HistoryPanel, "output": Output}
SCREENS = {"main": MainScreen, **PAGES, **OF_PANELS}


async def test_a_glance_shows_verdict_step_findings_and_output(running):
    async with started(running) as (app, pilot):
        for _ in range(20):
            text = screen_text(app)
            if "INFO step  380" in text:
                break
            await step(app, pilot)  # the output is read and drawn on its own
        for words in (
            "INPUT-BOUND",
            "rank 2 waits for data 33 %",
            "Fix: ",
            "380 / 400",
            "backward",
            "0 H100",
            "INFO step  380",
        ):
            assert words in text, words
        assert "training: 100% |####################| 400/400" in text


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50), (60, 16), (300, 80)])
async def test_every_size_is_filled_and_none_breaks(running, size):
    async with started(running, size=size) as (app, pilot):
        assert "Where a step goes" in screen_text(app) and "Findings" in screen_text(app)
        for name in app.main.query_one(Body).visible_panels():
            region = app.main.panel(name).region
            assert region.width > 10 and region.height >= 1, name
        await pilot.resize_terminal(120, 40)
        await pilot.resize_terminal(*size)
        assert app.screen.size == size


async def test_numbers_go_to_panels_and_tab_walks_through_them(running):
    async with started(running) as (app, pilot):
        for key, name in zip(
            "1234567", ["breakdown", "history", "ranks", "history", "findings", "output", "loss"]
        ):
            await pilot.press(key)
            assert app.focused.id == name
        await pilot.press("1", "tab")
        assert app.focused.id == "history"
        await pilot.press("shift+tab", "shift+tab")
        assert app.focused.id == "loss"


async def test_zoom_hide_and_back(running):
    async with started(running) as (app, pilot):
        body = app.main.query_one(Body)
        await pilot.press("r", "z")
        await pilot.pause()
        assert body.visible_panels() == ["ranks"] and app.main.panel("ranks").region.height > 30
        await pilot.press("escape")
        assert len(body.visible_panels()) == 5
        await pilot.press("2", "h")
        assert "history" not in body.visible_panels() and app.focused.id != "history"
        await pilot.press("2")
        assert "history" in body.visible_panels() and app.focused.id == "history"


async def test_the_compact_layout_switches_one_place(running):
    async with started(running, size=(80, 24)) as (app, pilot):
        body = app.main.query_one(Body)
        assert body.visible_panels() == ["breakdown", "findings", "output"]
        await pilot.press("r")
        await pilot.pause()
        assert body.visible_panels() == ["breakdown", "ranks", "findings"]
        assert "2 history  3 ranks  6 output  7 loss" in screen_text(app)


async def test_pause_holds_the_picture_and_counts(running):
    async with started(running) as (app, pilot):
        await pilot.press("space")
        app.feed.next = running._replace(summary=running.summary._replace(steps=503), sequence=9)
        await step(app, pilot)
        assert app.main.snapshot.summary.steps == 380
        assert app.main.query_one(
            Header
        ).paused_steps == 123 and "paused, +123 steps" in screen_text(app)
        await pilot.press("space")
        await pilot.pause()
        assert app.main.snapshot.summary.steps == 503 and "paused" not in screen_text(app)


async def test_a_finding_opens_with_evidence_and_fix_and_is_copied(running):
    async with started(running) as (app, pilot):
        await pilot.press("f", "enter")
        await pilot.pause()
        assert isinstance(app.screen, EvidenceScreen)
        text = screen_text(app)
        assert "1 of 2" in text and "num_workers=2" in text and "train.py:41" in text
        await pilot.press("y")
        assert app.clipboard == app.main.snapshot.findings[0].fix
        await pilot.press("Y")
        assert (
            app.clipboard.startswith("IN01 high: rank 2 waits")
            and "fix: DataLoader" in app.clipboard
        )
        await pilot.press("escape")
        assert isinstance(app.screen, MainScreen)


async def test_the_cursor_moves_and_y_copies_the_chosen_row(running):
    async with started(running) as (app, pilot):
        await pilot.press("r", "down", "down", "y")
        # from rank 1 on, which the first finding names
        assert app.main.query_one(Ranks).cursor == 3 and app.clipboard.startswith("rank 3 on box")
        await pilot.press("f", "down", "y")
        assert app.main.query_one(Findings).cursor == 1 and app.clipboard.startswith("HO06")
        await pilot.press("1", "y")
        assert "backward" in app.clipboard


def method(action: Action) -> str:
    """Of the app or a screen, without ``action_``: ``panel`` of ``screen.panel('memory')``."""
    return target(action).partition(".")[2].partition("(")[0]


async def test_every_action_of_the_table_exists_and_is_in_the_help(running):
    async with started(running, FakeControl(), size=(120, 84)) as (app, pilot):
        for action in ACTIONS:
            owner = app if action.id in OF_THE_APP else SCREENS[action.screen]
            assert callable(getattr(owner, f"action_{method(action)}")), action.id
            assert action.id in target(action)
        assert {b.id for b in app.main._bindings.key_to_bindings["q"]} == {"quit"}
        await pilot.press("question_mark")
        await pilot.pause()
        text = screen_text(app)
        for action in on_screen("main"):
            assert (action.description in text) == (action.scope != "replay"), action.id


@pytest.mark.parametrize("name", PAGES)
def test_every_key_of_a_screen_does_something_there(name):
    for action in on_screen(name):
        owner = GputopApp if action.id in OF_THE_APP else SCREENS[name]
        assert callable(getattr(owner, f"action_{method(action)}")), action.id
    keys = [key for action in on_screen(name) for key in action.keys.split(",")]
    assert len(keys) == len(set(keys)), "a key has one meaning on a screen"


async def test_before_anything_is_typed_the_palette_begins_with_what_helps_now(running):
    async with started(running, FakeControl()) as (app, pilot):
        await press(app, pilot, "colon")
        shown = app.screen.query_one(CommandList)
        for _ in range(20):
            await settle(app, pilot)
            if shown.option_count > 5:
                break
        titles = [str(shown.get_option_at_index(i).hit.text) for i in range(5)]
    assert [title.split(":")[0] for title in titles[:2]] == ["Finding IN01", "Finding HO06"]
    assert titles[2:] == ["Quit (q)", "Help (?)", "Findings (5 or f)"]


async def test_the_palette_marks_the_chosen_one_and_has_keys_of_its_own(running):
    async with started(running, size=(60, 20)) as (app, pilot):
        await press(app, pilot, "colon", *"numer")
        await settle(app, pilot)
        lines = screen_text(app).splitlines()
        assert lines[6].startswith("› Numerics (9 or n)")
        assert lines[-1].rstrip() == " enter run   esc close"
        await press(app, pilot, "enter")
        assert isinstance(app.screen, NumericsScreen)


async def test_in_a_narrow_terminal_a_dialog_takes_all_columns_and_tells_its_keys(running):
    async with started(running, size=(60, 20)) as (app, pilot):
        await press(app, pilot, "e")
        box = app.screen.query_one(".box")
        assert box.region.width == 60 and "enter choose · esc cancel" in screen_text(app)
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert box.region.width == 64


async def test_a_recording_is_wrapped_anew_for_another_window(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = recording_of_another_tool(Stage(tmp_path, None))
    async with app.run_test(size=(60, 20)) as pilot:
        for width in (120, 60, 80):
            await pilot.resize_terminal(width, 30)
            await pilot.pause()
            lines = [line.rstrip() for line in screen_text(app).splitlines()]
            first = next(line for line in lines if line.startswith("thread 1"))
            after = lines[lines.index(first) + 1].split() or ["x" * width]
            assert len(first) <= width - 2 < len(first) + 1 + len(after[0])


def test_keys_that_do_the_same_are_told_in_words():
    keys = {action.id: action.each_key for action in ACTIONS}
    assert (keys["findings"], keys["zoom"], keys["seek_back"]) == ("5 or f", "z", "← →")
    assert keys["history"] == "2, m, 4 or g"


async def test_the_palette_lists_the_same_actions(running):
    async with started(running) as (app, pilot):
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert (
            "Export (e)" in titles
            and "Theme" in titles
            and not any("Seek" in title for title in titles)
        )
        command = next(
            c for c in app.get_system_commands(app.screen) if c.title.startswith("Ranks")
        )
        command.callback()
        await pilot.pause()
        assert app.focused.id == "ranks"


@pytest.mark.parametrize("ended", [False, True])
async def test_what_asks_the_training_is_offered_while_there_is_one(running, ended):
    over = running._replace(summary=running.summary._replace(state="ended", exit_code=0))
    shown = over if ended else running
    async with started(shown, FakeControl(), size=(120, 70)) as (app, pilot):
        titles = [command.title for command in app.get_system_commands(app.screen)]
        assert ("Profile (p)" in titles) == (not ended)
        await press(app, pilot, "question_mark")
        assert ("Profile the next three steps" in screen_text(app)) == (not ended)


async def test_a_dialog_writes_its_words_once_for_each_size(running):
    written = []

    def words_at(size):
        written.append(tuple(size))
        return Words(Content("words"))

    async with started(running, size=(120, 40)) as (app, pilot):
        app.push_screen(TextDialog("Title", words_at))
        await settle(app, pilot)
        assert written == [(120, 40)]
        await pilot.resize_terminal(80, 24)
        await settle(app, pilot)
        assert written == [(120, 40), (80, 24)] and "words" in screen_text(app)


async def test_keys_can_be_remapped_by_id(running):
    async with started(running) as (app, pilot):
        app.set_keymap({"zoom": "x"})
        await pilot.press("r", "x")
        assert app.main.query_one(Body).zoomed == "ranks"


@pytest.mark.parametrize(
    ("key", "suffix"), [("s", "svg"), ("m", "md"), ("j", "json"), ("c", "csv")]
)
async def test_export_writes_what_is_seen(running, tmp_path, monkeypatch, key, suffix):
    monkeypatch.chdir(tmp_path)
    async with started(running) as (app, pilot):
        for _ in range(2):
            await pilot.press("e")
            await pilot.pause()
            assert isinstance(app.screen, ChoiceDialog)
            await pilot.press(key)
            await pilot.pause()
    first, second = sorted(tmp_path.iterdir(), key=lambda path: len(path.name))
    assert (
        first.name == f"gputop-straggler-step380.{suffix}"
        and second.name == f"gputop-straggler-step380-2.{suffix}"
    )
    check_export(first.read_text(), suffix)


def check_export(text, suffix):
    if suffix == "svg":
        assert text.startswith("<svg") and "backward" in text and "Step" in text
    elif suffix == "md":
        assert "| backward |" in text and "Fix: DataLoader" in text
    elif suffix == "json":
        data = json.loads(text)
        assert data["summary"]["steps"] == 380 and data["findings"][0]["id"] == "IN01"
        assert "NaN" not in text
    else:
        lines = text.splitlines()
        assert lines[0].startswith("rank,host,steps,step_time_p50_ms") and len(lines) == 5


async def test_export_into_a_folder_that_is_gone_says_so(running, tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    async with started(running) as (app, pilot):
        monkeypatch.setattr(Path, "cwd", lambda: folder)
        folder.rmdir()
        app._export("csv")
        await pilot.pause()
        assert any("cannot write" in note.message for note in app._notifications)


async def test_q_on_an_ended_run_leaves_at_once(running):
    ended = running._replace(summary=running.summary._replace(state="ended", exit_code=0))
    async with started(ended, mode="replay") as (app, pilot):
        await pilot.press("q")
    assert app.return_value.action == "quit" and not app.return_value.still_running


async def test_q_on_a_live_run_asks_and_can_be_cancelled(running):
    control = FakeControl()
    async with started(running, control) as (app, pilot):
        await pilot.press("q")
        await pilot.pause()
        assert isinstance(app.screen, ChoiceDialog) and "still running" in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, MainScreen) and app.is_running and control.asked == []


async def test_leaving_it_running_touches_nothing(running):
    control = FakeControl()
    async with started(running, control) as (app, pilot):
        await pilot.press("q")
        await pilot.pause()
        await pilot.press("l")
    assert (
        app.return_value.action == "detached"
        and app.return_value.still_running
        and control.asked == []
    )


async def test_stopping_waits_for_the_end_and_can_be_made_sterner(running):
    control = FakeControl()
    async with started(running, control) as (app, pilot):
        await pilot.press("ctrl+c")
        await pilot.pause()
        await pilot.press("s")
        await step(app, pilot)
        assert control.asked == ["interrupt"] and app.is_running
        await pilot.press("q")
        await pilot.pause()
        shown = screen_text(app)
        assert all(word in shown for word in ("SIGKILL", "enter choose · esc keep waiting"))
        assert f"{ESCALATION_WINDOW_S:g} s" in shown
        await pilot.press("k")
        await step(app, pilot)
    assert control.asked == ["interrupt", "kill"] and app.return_value.action == "stopped"


async def test_arrows_choose_a_line_of_the_budget_and_pages_scroll(running):
    async with started(running, size=(60, 20)) as (app, pilot):
        await press(app, pilot, "b")
        await settle(app, pilot)
        assert "pgup pgdn rows 1–" in screen_text(app) and "↑↓ another line" in screen_text(app)
        await press(app, pilot, "pagedown")
        assert app.screen.page.first > 0 and app.screen.page.cursor == 0
        await press(app, pilot, "down")
        assert app.screen.page.first == 0 and app.screen.page.cursor == 1


async def test_profile_and_stacks_are_asked_for_and_shown(running):
    from gputop.feed.snapshot import Notice

    control = FakeControl()
    async with started(running, control) as (app, pilot):
        await pilot.press("p", "d")
        assert control.asked == ["profile 3", "dump"]
        body = {
            "steps": 3,
            "table": [{"op": "aten::mm", "calls": 12, "cpu_ms": 3.5, "device_ms": None}],
        }
        app.feed.next = running._replace(notices=(Notice(1, "profile", 0, body),), sequence=5)
        await step(app, pilot)
        await pilot.pause()
        shown = screen_text(app)
        assert isinstance(app.screen, TextDialog) and "aten::mm" in shown
        assert "3.50" in shown and "100 %" in shown and "operators' CPU time" in shown


async def test_output_scrolls_away_follows_again_and_is_searched(running):
    async with started(running) as (app, pilot):
        output = app.main.query_one(Output)
        await pilot.press("o", "home")
        await pilot.pause()
        assert not output.follow and "INFO step    0" in screen_text(app)
        await pilot.press("end")
        await pilot.pause()
        assert output.follow
        before = screen_text(app).splitlines()
        await pilot.press("slash")
        await pilot.pause()
        lines = screen_text(app).splitlines()
        assert lines[:-1] == before[:-1], "nothing of what is searched is hidden"
        assert lines[-1].startswith(" / ") and lines[-1].rstrip().endswith("esc close")
        app.screen.query_one(Input).value = "step  100"
        await pilot.press("enter")
        await pilot.pause()
        assert output.needle == "step  100" and "▌INFO step  100" in screen_text(app)
        await pilot.press("escape")
        assert output.needle == ""


async def test_a_feed_that_raises_is_shown_and_told_on_leaving(running, capsys):
    async with started(running) as (app, pilot):
        app.feed.take = lambda: 1 / 0
        await step(app, pilot)
        await pilot.pause()
        assert app.is_running and any(
            "ZeroDivisionError" in note.message for note in app._notifications
        )
    app.surface_errors()
    assert "ZeroDivisionError" in capsys.readouterr().err


async def test_a_record_that_is_gone_leaves_the_last_picture_and_says_so(running):
    async with started(running) as (app, pilot):
        app.feed.next = running._replace(
            problem="the record at X is gone: this is what it last said", sequence=3
        )
        await step(app, pilot)
        assert "the record at X is gone" in screen_text(app) and "380 / 400" in screen_text(app)


async def test_no_colour_uses_letters_and_the_terminals_own_colours(running, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with started(running, size=(80, 24)) as (app, _):
        assert app.theme == "ansi-dark" and "bbbbbb" in screen_text(app)
        styles = [
            part.style
            for line in app.screen._compositor.render_strips()
            for part in line
            if part.style
        ]
        assert {
            c.name for style in styles for c in (style.color, style.bgcolor) if c is not None
        } == {"default"}


async def test_any_theme_has_the_roles(running):
    async with started(running) as (app, pilot):
        for name in ("gputop-light", "nord", "textual-light", "ansi-dark"):
            app.theme = name
            await pilot.pause()
        assert "Where a step goes" in screen_text(app)


@pytest.mark.parametrize("size", [(60, 20), (120, 40)])
async def test_a_record_that_cannot_be_read_says_where_it_lies_and_what_can_be_done(running, size):
    told = first_snapshot(running.run_dir)._replace(problem="run.json: cut off in the middle")
    async with started(told, size=size) as (app, _):
        text = screen_text(app)
        assert (
            "✖ The record cannot be read: run.json: cut off" in text
            and running.run_dir.name in text
        )
        assert "wait" in text and "Findings" not in text and "History" not in text
        assert "b budget" not in text and "? help" in text
