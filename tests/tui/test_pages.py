"""The screens above the main one, as a user drives them."""

from __future__ import annotations

from tui_pilot import press, screen_text, started, step
from tui_support import FakeControl

from gputop.pages.ranks import RanksPage
from gputop.screens.budget import BudgetScreen
from gputop.screens.dialog import ChoiceDialog
from gputop.screens.layers import LayersScreen
from gputop.screens.main import MainScreen
from gputop.screens.numerics import NumericsScreen
from gputop.screens.ranks import RanksScreen
from gputop.screens.topology import TopologyScreen


async def test_the_budget_explains_the_line_under_the_cursor(running):
    async with started(running) as (app, pilot):
        await press(app, pilot, "8")
        assert isinstance(app.screen, BudgetScreen)
        text = screen_text(app)
        assert "useful compute" in text and "100 %" in text and "4 ranks" in text
        await press(app, pilot, "down", "down")
        text = screen_text(app)
        assert (
            "waiting for the next batch" in text
            and "steps.data_ns" in text
            and "data stall by rank" in text
        )


async def test_numerics_mark_what_jumps_together_and_tab_shows_the_next_rank(running):
    async with started(running) as (app, pilot):
        await press(app, pilot, "n")
        assert isinstance(app.screen, NumericsScreen)
        text = screen_text(app)
        assert (
            "grad norm 9.5 at step 250" in text
            and "loss 6.4 at step 250" in text
            and "▼ 6.4" in text
        )
        assert "rank 0 of 4" in text
        await press(app, pilot, "tab")
        assert "rank 1 of 4" in screen_text(app)


async def test_ranks_are_sorted_by_wait_with_the_culprit_first_and_by_other_columns(running):
    async with started(running) as (app, pilot):
        await press(app, pilot, "w")
        assert isinstance(app.screen, RanksScreen)
        text = screen_text(app)
        assert "rank 2 holds up the others: it is slow in data" in text and "rank 2 on box" in text
        table = app.screen.query_one(RanksPage)
        await press(app, pilot, "down")
        assert table.chosen is not None and f"rank {table.chosen} on box" in screen_text(app)
        await press(app, pilot, "s")
        assert (
            table.sort == "own"
            and "by own" in screen_text(app)
            and "rank 2 on box" in screen_text(app)
        )
        await press(app, pilot, "S")
        assert "rank 2 on box" not in screen_text(app)


async def test_pages_follow_each_other_and_escape_goes_back_to_what_is_new(running):
    async with started(running) as (app, pilot):
        await press(app, pilot, "b", "n", "w")
        assert isinstance(app.screen, RanksScreen) and len(app.screen_stack) == 2
        app.feed.next = running._replace(summary=running.summary._replace(steps=390), sequence=9)
        await step(app, pilot)
        assert "390 / 400" in screen_text(app) and app.main.snapshot.summary.steps == 380
        await press(app, pilot, "escape")
        assert isinstance(app.screen, MainScreen) and "390 / 400" in screen_text(app)
        assert app.feed.pages.wanted is None


async def test_keys_that_come_at_once_are_taken_in_their_order(running):
    async with started(running) as (app, pilot):
        for key in ("f", "enter"):
            app.simulate_key(key)
        await pilot.pause()
        assert app.page_screen is not None and app.page_screen.NAME == "evidence"


async def test_enter_opens_what_lies_behind_a_panel(running):
    async with started(running) as (app, pilot):
        for key, name in (("1", "budget"), ("7", "numerics"), ("3", "ranks"), ("5", "evidence")):
            await press(app, pilot, key, "enter")
            assert name == app.page_screen.NAME
            await press(app, pilot, "escape")


async def test_evidence_shows_the_proof_and_steps_through_the_findings(running):
    async with started(running, size=(120, 50)) as (app, pilot):
        await press(app, pilot, "f", "enter")
        text = screen_text(app)
        assert "31.2 %" in text and "threshold 10 %" in text and "390 steady steps" in text
        assert "data in each step of rank 2" in text and "a step (95 %:" in text
        await press(app, pilot, "tab")
        assert "2 of 2" in screen_text(app) and "other in each step" in screen_text(app)
        app.feed.next = running._replace(findings=running.findings[:1], sequence=9)
        await step(app, pilot)
        assert "no longer seen" in screen_text(app) and "HO06" in screen_text(app)


async def test_pause_holds_a_page_too_and_dialogs_open_above_it(running):
    async with started(running) as (app, pilot):
        await press(app, pilot, "b", "space")
        app.feed.next = running._replace(summary=running.summary._replace(steps=393), sequence=9)
        await step(app, pilot)
        assert "paused, +13 steps" in screen_text(app)
        await press(app, pilot, "space")
        assert "393 / 400" in screen_text(app)
        await press(app, pilot, "e")
        assert isinstance(app.screen, ChoiceDialog)
        await press(app, pilot, "escape", "escape")
        assert isinstance(app.screen, MainScreen)


async def test_help_on_a_page_lists_its_keys(running):
    async with started(running, size=(120, 60)) as (app, pilot):
        await press(app, pilot, "w", "question_mark")
        assert "Sort by the next column." in screen_text(
            app
        ) and "Hide the focused panel" not in screen_text(app)


async def test_a_page_that_cannot_be_read_says_why_and_the_rest_goes_on(
    running, tmp_path, monkeypatch
):
    import gputop.feed.budget as source

    def broken(*_):
        raise ValueError("no such column")

    monkeypatch.setattr(source, "budget", broken)
    async with started(running) as (app, pilot):
        await press(app, pilot, "b")
        assert "this could not be read: ValueError: no such column" in screen_text(app)
        await press(app, pilot, "n")
        assert "gradient norm" in screen_text(app)


async def test_pages_are_readable_without_colour(running, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with started(running, size=(80, 24)) as (app, pilot):
        await press(app, pilot, "b")
        assert "uuuuuu" in screen_text(app)


async def test_the_links_open_above_a_run_and_go_back_to_it(running):
    async with started(running) as (app, pilot):
        await press(app, pilot, "i")
        assert isinstance(app.screen, TopologyScreen) and "gb200-nvl72" in screen_text(app)
        await press(app, pilot, "escape")
        assert app.screen is app.main and not app.main.covered


async def test_the_layers_screen_says_how_layers_come_to_be_watched(running):
    control = FakeControl()
    async with started(running, control) as (app, pilot):
        await press(app, pilot, "l")
        assert isinstance(app.screen, LayersScreen)
        assert "No layer was watched" in " ".join(screen_text(app).split())
        await press(app, pilot, "s", "f", "tab", "escape")
        assert control.asked == ["layers"]
