"""Every page at every designed size as text, and in ASCII; colours stand in the pictures.
``pytest --snapshot-update`` re-makes them.
"""

from __future__ import annotations

import pytest
from tui_pilot import press, screen_text, settle, started

from gputop.app.plain_terminal import plain

PAGES = {
    "overview": (),
    "step": ("1", "z"),
    "history": ("2", "z"),
    "ranks": ("3", "z"),
    "findings": ("f", "z"),
    "output": ("6", "z"),
    "loss": ("7", "z"),
    "evidence": ("f", "enter"),
    "budget": ("b",),
    "numerics": ("n",),
    "all-ranks": ("w",),
    "what-if": ("u",),
    "estimate": ("v",),
    "plan": ("t",),
    "catalog": ("x",),
    "help": ("question_mark",),
    "settings": ("comma",),
}
SIZES = {"60x20": (60, 20), "80x24": (80, 24), "120x40": (120, 40), "200x50": (200, 50)}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")


async def drawn(running, page, size) -> str:
    async with started(running, size=size) as (app, pilot):
        await press(app, pilot, *PAGES[page])
        await settle(app, pilot)
        lines = screen_text(app).splitlines()
    assert {len(line) for line in lines} == {size[0]} and len(lines) == size[1]
    return "\n".join(line.rstrip() for line in lines)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("page", PAGES)
async def test_page(snapshot, running, page, size):
    assert await drawn(running, page, size) == snapshot


@pytest.mark.parametrize("page", ["overview", "budget", "numerics", "all-ranks"])
async def test_page_in_ascii(snapshot, running, page):
    text = plain(await drawn(running, page, (120, 40)))
    assert text.isascii() and "?" not in text.replace("? help", "")
    assert text == snapshot
