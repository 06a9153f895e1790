"""Keys that come in a burst, as a slow line delivers them: they reach what is on top by then, and
break nothing.
"""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from textual.events import Key
from tui_pilot import press, settle, started

from gputop.app import AppResult
from gputop.app.catalog import CatalogApp
from gputop.app.estimator import EstimatorApp
from gputop.app.strategy import StrategyApp
from gputop.screens.dialog import ChoiceDialog
from gputop.screens.main import MainScreen

NAMED = (
    "escape enter question_mark slash space tab shift+tab up down left right pageup "
    "pagedown home end backspace"
)
KEYS = [*"lsemjcbnwvtxifozhyadpSgr1234567", *NAMED.split()]


def type_all(app, keys):
    """Without waiting for what any of them does."""
    for name in keys:
        app.post_message(Key(name, name if len(name) == 1 else None))


async def test_keys_typed_on_while_the_app_leaves_open_nothing(running):
    async with started(running) as (app, pilot):
        app.exit(AppResult("quit"))
        type_all(app, ["e", "question_mark", "v", "right"])
        await pilot.pause()
    assert len(app.screen_stack) <= 1 and app.return_value == AppResult("quit")


async def test_two_answers_at_once_close_one_dialog(running):
    async with started(running) as (app, pilot):
        await press(app, pilot, "e")
        assert isinstance(app.screen, ChoiceDialog)
        type_all(app, ["escape", "escape", "z"])
        await settle(app, pilot)
        assert isinstance(app.screen, MainScreen)
        assert app.screen.query_one("#body").zoomed == "breakdown"


async def test_a_page_key_before_the_palette_is_laid_out(running):
    async with started(running) as (app, pilot):
        for turns in (1, 5, 6, 8):
            app.action_command_palette()
            for _ in range(turns):
                await asyncio.sleep(0)
            type_all(app, ["pagedown", "pageup", "escape"])
            await settle(app, pilot)
        assert isinstance(app.screen, MainScreen)


@pytest.mark.parametrize("kind", ["live", "replay", CatalogApp, EstimatorApp, StrategyApp])
async def test_no_burst_of_keys_breaks_a_screen(running, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # exports go into the current directory
    dice = random.Random(str(kind))
    keys = [dice.choice(KEYS) for _ in range(80)]
    context = started(running, mode=kind, size=(80, 24)) if isinstance(kind, str) else alone(kind())
    async with context as (app, pilot):
        while keys and app.is_running:
            burst, keys = keys[:5], keys[5:]
            type_all(app, burst)
            await asyncio.sleep(0.02)
        await pilot.pause()
        app.exit()
    assert not getattr(app, "errors", [])


@asynccontextmanager
async def alone(app):
    """A screen without a run."""
    async with app.run_test(size=(80, 24)) as pilot:
        yield app, pilot
