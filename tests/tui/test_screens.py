"""Every screen at each designed size, and on a light terminal, in 16 colours, in ASCII and without
colour: its text, and how many cells have which look. ``pytest --snapshot-update`` re-makes them,
``bench/screenshots.py`` the pictures of the same table.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter

import pytest
from tui_pilot import screen_text
from tui_screens import MODES, SCREENS, SIZES, USUAL, Stage, change, opened, resized

from gputop.app.cells import rows_of
from gputop.app.plain_terminal import plain

PLACE = re.compile(r"^( directory).*(\n {12}\S.*)*", re.MULTILINE)
"""Where a run lies: another place at each run of the tests."""


@pytest.fixture(autouse=True)
def _of_this_machine_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    monkeypatch.setenv("GPUTOP_RUNS_DIR", "runs")
    monkeypatch.setattr("gputop_probes.locations.fallback_roots", list)


def text_of(app) -> str:
    """The screen as text; each line has its width."""
    lines = screen_text(app).splitlines()
    assert {len(line) for line in lines} == {app.size.width} and len(lines) == app.size.height
    return PLACE.sub(r"\1 ...", "\n".join(line.rstrip() for line in lines))


def looks_of(app) -> str:
    """How many cells have which colours, and a sum of where each of them is."""
    cells: Counter[str] = Counter()
    rows = rows_of(app)
    for row in rows:
        for piece in row:
            weight = " bold" if piece.bold else ""
            cells[f"{piece.colour} on {piece.background}{weight}"] += len(piece.text)
    where = [[(p.column, len(p.text), *p[2:]) for p in row] for row in rows]
    lines = [f"{count:>6} {look}" for look, count in sorted(cells.items(), key=lambda c: c[0])]
    return "\n".join([*lines, f"       placed {zlib.crc32(repr(where).encode()):08x}"])


def beside(text: str, usual: str) -> str:
    """The lines that are not those of the usual screen."""
    pairs = zip(text.split("\n"), usual.split("\n"), strict=True)
    return "\n".join(line for line, other in pairs if line != other)


@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen(snapshot, tmp_path, monkeypatch, running, name):
    shown = SCREENS[name]
    (tmp_path / "again").mkdir()
    async with opened(shown, Stage(tmp_path, running)) as (app, pilot):
        for kind, size in SIZES.items():
            await resized(shown, app, pilot, size)
            assert f"{text_of(app)}\n{looks_of(app)}" == snapshot(name=kind)
        await resized(shown, app, pilot, SIZES[USUAL])
        usual = text_of(app)
        for mode in MODES[:3]:
            await change(shown, app, pilot, mode)
            text = text_of(app)
            if mode == "ascii":
                written = plain(text)
                assert written.isascii() and written.count("?") == text.count("?")
            else:
                written = f"{beside(text, usual)}\n{looks_of(app)}"
            assert written == snapshot(name=mode)
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(shown, Stage(tmp_path / "again", running)) as (app, pilot):
        text = text_of(app)
        assert f"{beside(text, usual)}\n{looks_of(app)}" == snapshot(name=MODES[3])
