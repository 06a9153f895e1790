"""The screen of an allocator snapshot: its course, the tables below, and two snapshots compared."""

import pytest
from recordings_support import segment, two_segments, write_snapshot
from tui_pilot import press, screen_text

from gputop.app.memory import MemoryApp
from gputop.render import memory
from gputop.render.rows import row_text, row_width
from gputop_analysis.snapshots import load
from gputop_analysis.snapshots.analyse import analyse

MIB = 1 << 20


def test_a_course_of_few_bytes_is_in_mib_with_a_round_middle(pair):
    rows = [row_text(row) for row in memory.course(pair[1], 100, 13)]
    assert rows[0].startswith("MiB ") and "reserved is the upper line" in rows[0]
    assert [row.split()[0] for row in rows[1:-1] if row[:8].strip()] == ["80", "40", "0"]


def test_settings_are_compared_with_the_replay_of_the_same_ones(pair):
    """The made-up program reserves more than the model would: that is no other setting's merit."""
    settings = next(view for view in memory.views(pair[1], None) if view.title == "other settings")
    rows = settings.draw(58)
    lines = [row_text(row).split() for row in rows]
    assert row_text(rows[0]) == "reserved peak of the same requests, a rough guess"
    assert lines[1] == ["PYTORCH_CUDA_ALLOC_CONF", "reserved", "change"]
    assert lines[2:5] == [
        ["as", "recorded", "80", "MiB"],
        ["as", "recorded,", "replayed", "50", "MiB"],
        ["expandable_segments:True", "60", "MiB", "+10", "MiB"],
    ]
    assert lines[5] == ["max_split_size_mb:64", "50", "MiB", "none"]
    assert not any(style == "good" for row in rows for _, style in row)
    assert max(map(row_width, settings.draw(298)[:-3])) < 100, "figures stand near their names"


def test_two_lines_of_a_chart_are_told_apart_without_colour(pair):
    head = row_text(memory.course(pair[1], 100, 13)[0])
    assert "╌ reserved" in head and "━ allocated" in head


async def test_what_a_table_hides_is_told_and_a_tall_screen_has_a_tall_chart(pair):
    app = MemoryApp(pair[1], pair[0])
    async with app.run_test(size=(60, 20)) as pilot:
        await press(app, pilot, "shift+tab", "shift+tab")
        assert "↑↓ 1–" in screen_text(app)
        await pilot.resize_terminal(300, 80)
        await pilot.pause()
        assert app.screen.query_one("#course").size.height > 50
        assert "↑↓" not in screen_text(app)


def test_without_stacks_it_says_how_to_record_them(tmp_path):
    path = write_snapshot(
        tmp_path / "bare.pickle",
        {"segments": [segment(0, 40 * MIB, [(40 * MIB, [])])], "device_traces": [[]]},
    )
    held = memory.views(analyse(load(path)), None)[0]
    for width in (56, 118):
        rows = held.draw(width)
        assert row_width(rows[0]) <= width
        assert "(no stack was recorded)" in row_text(rows[0])
        assert "_record_memory_history" in "".join(map(row_text, rows))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("snapshots")
    return [analyse(load(two_segments(folder / f"{kept}.pickle", kept))) for kept in (1, 3)]


async def test_tables_of_a_snapshot_and_what_changed(pair):
    before, later = pair
    app = MemoryApp(later, before)
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
        assert "since " in screen_text(app)
        assert "The same lines hold the same bytes at both peaks." in screen_text(app)
        await press(app, pilot, "tab", "shift+tab", "shift+tab")
        assert "expandable_segments:True" in screen_text(app)
        await press(app, pilot, "escape")
    assert app.return_code == 0
