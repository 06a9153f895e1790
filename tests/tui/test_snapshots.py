"""The designed sizes, the light theme, 16 colours and no colour, as pictures.
``pytest --snapshot-update`` re-makes them.
"""

from __future__ import annotations

import pytest
from tui_support import FixedClock, StillFeed

from gputop.app import Source
from gputop.app.application import GputopApp

PAGES = {"evidence": ("f", "enter"), "budget": ("b",), "numerics": ("n",), "ranks": ("w",)}


def still(running, theme="gputop-dark"):
    app = GputopApp(
        Source(running.run_dir, "live"), FixedClock(), StillFeed(running), ticking=False
    )
    app.theme = theme
    return app


def after(*keys):
    async def run(pilot):
        pilot.app.tick()
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            await pilot.app.workers.wait_for_complete()
        await pilot.pause()

    return run


@pytest.mark.parametrize(
    "size",
    [(60, 20), (80, 24), (120, 40), (200, 50), (300, 80)],
    ids=["60x20", "80x24", "120x40", "200x50", "300x80"],
)
def test_overview(snap_compare, running, size):
    assert snap_compare(still(running), terminal_size=size, run_before=after())


@pytest.mark.parametrize(
    "size", [(80, 24), (120, 40), (200, 50)], ids=["80x24", "120x40", "200x50"]
)
@pytest.mark.parametrize("keys", PAGES.values(), ids=PAGES)
def test_page(snap_compare, running, size, keys):
    assert snap_compare(still(running), terminal_size=size, run_before=after(*keys))


def test_sixteen_colours(snap_compare, running):
    app = still(running, "ansi-dark")
    assert snap_compare(app, terminal_size=(120, 40), run_before=after())


def test_no_colour(snap_compare, running, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = still(running, "ansi-dark")
    assert snap_compare(app, terminal_size=(120, 40), run_before=after())


@pytest.mark.parametrize("page", ["evidence", "ranks"])
def test_page_on_the_smallest_terminal(snap_compare, running, page):
    assert snap_compare(still(running), terminal_size=(60, 20), run_before=after(*PAGES[page]))


def test_light(snap_compare, running):
    assert snap_compare(still(running, "gputop-light"), terminal_size=(120, 40), run_before=after())


def test_zoomed_ranks(snap_compare, running):
    assert snap_compare(still(running), terminal_size=(80, 24), run_before=after("r", "z"))
