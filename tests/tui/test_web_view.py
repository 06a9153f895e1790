"""What a viewer of ``gputop serve`` may do: look on, and with ``--control`` act too."""

from __future__ import annotations

import ast
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tui_pilot import press, step
from tui_support import FakeControl, FixedClock, StillFeed

import gputop
from gputop import settings
from gputop.actions import ACTIONS
from gputop.app import Source
from gputop.web_view import _WRITING, ViewerApp

KEYS = [action.keys.partition(",")[0] for action in ACTIONS if action.scope == "control"]
WRITERS = {"write", "write_new", "save", "settings.keep"}
"""Functions of the app's that write files for the user."""


@asynccontextmanager
async def viewer(running, control):
    """The app that the server starts, and its folder."""
    source = Source(running.run_dir, "live", control)
    app = ViewerApp(source, FixedClock(), StillFeed(running), ticking=False)
    app.read_only = control is None
    async with app.run_test(size=(120, 40)) as pilot:
        await step(app, pilot)
        yield app, pilot


async def test_who_looks_on_changes_nothing(running, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = settings.load().values
    async with viewer(running, None) as (app, pilot):
        for key in KEYS:
            await press(app, pilot, key, "escape")
        await press(app, pilot, "e", "j")
        assert any("read-only" in note.message for note in app._notifications)
        await press(app, pilot, "escape", "comma", "space", "escape")
        for name in ("app.export", "screen.save", "change(1)"):
            assert await app.run_action(name)
        assert not app._exception
        await press(app, pilot, "q")
    assert not list(tmp_path.iterdir()) and settings.load().values == before


async def test_with_control_a_viewer_acts(running, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    control = FakeControl()
    async with viewer(running, control) as (app, pilot):
        await press(app, pilot, "p", "d", "e", "j", "q", "s")
        assert control.asked == ["profile 3", "dump", "interrupt"]
        control.running = False
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_each_action_that_writes_a_file_is_known():
    """Also what an action does only after its dialog's answer, in a method of the same name."""
    writing, actions = set(), set()
    for folder in ("app", "screens"):
        for path in Path(gputop.__file__).parent.joinpath(folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.FunctionDef):
                    continue
                name = node.name.removeprefix("action").removeprefix("_")
                if node.name.startswith("action_"):
                    actions.add(name)
                if WRITERS & set(called(node)):
                    writing.add(name)
    assert writing & actions == _WRITING


def called(method: ast.FunctionDef) -> list[str]:
    """What a method calls, as it is written; nothing of a plain function."""
    if not method.args.args or method.args.args[0].arg != "self":
        return []
    return [ast.unparse(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("words", [["RUN"], ["RUN", "--control"]])
def test_only_the_word_control_gives_control(running, monkeypatch, words):
    from gputop import web_view

    apps = []
    monkeypatch.setattr(web_view.os, "nice", lambda by: 0)
    monkeypatch.setattr(web_view, "source_of", lambda path, control: (path, control))
    monkeypatch.setattr(ViewerApp, "__init__", lambda self, source: apps.append((self, source)))
    monkeypatch.setattr(ViewerApp, "run", lambda self: None)
    web_view.main([str(running.run_dir), *words[1:]])
    ((app, (_, control)),) = apps
    assert control == (len(words) == 2) == (not app.read_only)
