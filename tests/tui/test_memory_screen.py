"""The screen of an allocator snapshot: its course, the tables below, and two snapshots compared."""

import pytest
from recordings_support import event, frame, segment, write_snapshot
from tui_pilot import press, screen_text

from gputop.app.memory import MemoryApp
from gputop_analysis.snapshots import load
from gputop_analysis.snapshots.analyse import analyse

MIB = 1 << 20


def snapshot(path, kept):
    """Two segments of 40 MiB: a weight in one, and ``kept`` of four activations in both."""
    forward = [frame("forward", "model.py", 20), frame("main", "train.py", 7)]
    weight = [frame("__init__", "model.py", 5), frame("main", "train.py", 3)]
    events = [event("segment_alloc", 0, 40 * MIB), event("segment_alloc", 100 * MIB, 40 * MIB)]
    events.append(event("alloc", 0, 10 * MIB, weight))
    places = [10 * MIB, 20 * MIB, 100 * MIB, 110 * MIB]
    for place in places:
        events.append(event("alloc", place, 10 * MIB, forward))
    for place in places[kept:]:
        events.append(event("free_requested", place, 10 * MIB))
        events.append(event("free_completed", place, 10 * MIB))
    used = {0: weight, **dict.fromkeys(places[:kept], forward)}
    segments = []
    for start in (0, 100 * MIB):
        blocks = [10 * MIB if start + at * MIB in used else None for at in (0, 10, 20, 30)]
        part = segment(start, 40 * MIB, [(10 * MIB, block) for block in blocks])
        for at, block in zip((0, 10, 20, 30), part["blocks"], strict=True):
            block["frames"] = used.get(start + at * MIB, [])
        segments.append(part)
    return write_snapshot(path, {"segments": segments, "device_traces": [events]})


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshots")
    return [analyse(load(snapshot(folder / f"{kept}.pickle", kept))) for kept in (1, 3)]


async def test_tables_of_a_snapshot_and_what_changed(pair):
    before, memory = pair
    app = MemoryApp(memory, before)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        text = screen_text(app)
        assert "allocated peak 50 MiB in model.py:20 forward" in text and "▼" in text
        assert "event 0" in text and "reserved peak  80 MiB, of it 30 MiB idle" in text
        assert "model.py:20 forward" in text and "80.0 %" in text
        assert "activations" in text and "other settings" in text
        await press(app, pilot, "tab", "tab", "tab")
        text = screen_text(app)
        assert "idle beside blocks in use" in text and "keeps its segments" in text
        await press(app, pilot, "tab")
        assert "expandable_segments:True" in screen_text(app)
        await press(app, pilot, "tab")
        assert "since " in screen_text(app) and "blocks" in screen_text(app)
        await press(app, pilot, "tab", "shift+tab", "shift+tab")
        assert "expandable_segments:True" in screen_text(app)
        await press(app, pilot, "escape")
    assert app.return_code == 0
