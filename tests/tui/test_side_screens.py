"""The screens beside the main one at every designed size, each from one start of the app.
``pytest --snapshot-update`` re-makes them.
"""

from __future__ import annotations

import re

import pytest
from recordings_support import two_segments
from tui_pilot import press, screen_text, settle
from tui_support import START_NS, FixedClock, StillFeed, write_layers, write_run

from gputop.app import Source
from gputop.app.application import GputopApp
from gputop.app.memory import MemoryApp
from gputop.app.plain_terminal import plain
from gputop.app.runs import RunsApp
from gputop_analysis.snapshots import load
from gputop_analysis.snapshots.analyse import analyse

SIZES = [(60, 20), (80, 24), (120, 40), (200, 50), (300, 80)]
MARKED = ("space", "down", "space")
HOUR_NS = 3600 * 10**9
FIX = ("python", "train.py", "--workers", "4")
PLACE = re.compile(r"^( directory).*(\n {12}\S.*)*", re.MULTILINE)
"""Where a run lies: another place at each run of the tests."""
NOW = FixedClock(START_NS + 3 * HOUR_NS)


def runs_app(tmp_path, monkeypatch, running) -> RunsApp:
    """Two runs, the earlier with a straggler, and a folder that is no record."""
    root = tmp_path / "runs"
    write_run(root / "20240101-slow", ranks=2, steps=120, slow_rank=1)
    write_run(root / "20240102-fast", ranks=2, steps=120, start_ns=START_NS + HOUR_NS, command=FIX)
    (root / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUTOP_RUNS_DIR", "runs")
    monkeypatch.setattr("gputop_probes.locations.fallback_roots", list)
    return RunsApp(clock=NOW)


def memory_app(tmp_path, monkeypatch, running) -> MemoryApp:
    """A snapshot, compared with an earlier one."""
    monkeypatch.chdir(tmp_path)
    paths = [two_segments(tmp_path / f"{kept}.pickle", kept).name for kept in (1, 3)]
    before, later = (analyse(load(path)) for path in paths)
    return MemoryApp(later, before)


def live_app(tmp_path, monkeypatch, running) -> GputopApp:
    """A run that goes on."""
    source = Source(running.run_dir, "live")
    return GputopApp(source, FixedClock(), StillFeed(running), ticking=False)


def replay_app(tmp_path, monkeypatch, running) -> GputopApp:
    """The same run played back: a bar with the moment above the footer."""
    return GputopApp(Source(running.run_dir, "replay"), FixedClock(), ticking=False)


def layers_app(tmp_path, monkeypatch, running) -> GputopApp:
    """A replay of a run whose layers were watched."""
    folder = write_run(tmp_path / "layers", steps=60)
    write_layers(folder)
    return GputopApp(Source(folder, "replay"), FixedClock(), ticking=False)


SCREENS = {
    "runs": (runs_app, ()),
    "two-marked": (runs_app, MARKED),
    "comparison": (runs_app, (*MARKED, "enter")),
    "memory": (memory_app, ()),
    "memory-settings": (memory_app, ("shift+tab", "shift+tab")),
    "layers": (layers_app, ("l",)),
    "palette": (live_app, ("colon", *"rank")),
    "replay": (replay_app, ()),
}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")


async def drawn(app, keys) -> dict[str, str]:
    """The screen as text, by size."""
    shown = {}
    async with app.run_test(size=(120, 40)) as pilot:
        if isinstance(app, GputopApp):
            app.tick()
        for _ in range(4):  # one worker lists, one after the other reads what is in sight
            await settle(app, pilot)
        await press(app, pilot, *keys)
        for width, height in SIZES:
            await pilot.resize_terminal(width, height)
            await settle(app, pilot)
            lines = screen_text(app).splitlines()
            assert {len(line) for line in lines} == {width} and len(lines) == height
            text = "\n".join(line.rstrip() for line in lines)
            shown[f"{width}x{height}"] = PLACE.sub(r"\1 ...", text)
    return shown


@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen_at_every_size(snapshot, tmp_path, monkeypatch, running, name):
    make, keys = SCREENS[name]
    shown = await drawn(make(tmp_path, monkeypatch, running), keys)
    for size, text in shown.items():
        assert text == snapshot(name=size)
    in_ascii = plain(shown["80x24"])
    assert in_ascii.isascii() and in_ascii.count("?") <= shown["80x24"].count("?")
