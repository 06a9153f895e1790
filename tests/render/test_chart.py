"""Charts, bars and listings as text, without an app."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop.feed.plots import Bar, Bars, Chart, Columns, Listing, MarkedStep, PlotLine
from gputop.render import chart
from gputop.render.rows import row_text, row_width
from gputop.widgets import plots

RISING = PlotLine("loss", tuple(map(float, range(100))), tuple(map(float, range(100))))


def texts(rows):
    return [row_text(row) for row in rows]


def dots(lines):
    """The rows' cells right of the labels that hold a braille dot."""
    return [
        [x for x, char in enumerate(line[chart.AXIS :]) if "\u2800" < char <= "\u28ff"]
        for line in lines
    ]


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right():
    lines = texts(chart.draw(Chart("loss", "", (RISING,)), 60, 9))
    cells = dots(lines[:-1])
    assert 0 in cells[-1] and max(cells[0]) == 60 - chart.AXIS - 1
    assert all(min(upper) >= min(lower) for upper, lower in pairwise(cells))
    assert lines[-1].split() == ["step", "0", "99"]


def test_the_labels_are_the_range_and_a_limit_is_drawn_where_it_lies():
    one = Chart("memory", "GiB", (PlotLine("a", (0, 10), (0.0, 10.0)),), level=5.0, from_zero=True)
    lines = texts(chart.draw(one, 40, 9))
    assert lines[0].split()[0] == "10" and lines[7].split()[0] == "0"
    assert [y for y, line in enumerate(lines) if "╌" in line] == [4]


def test_values_of_very_different_size_get_a_logarithmic_scale():
    values = tuple(10.0**-k for k in range(5))
    scale = chart.scale_of(Chart("loss", "", (PlotLine("a", (0, 1, 2, 3, 4), values),)))
    assert scale is not None and scale.log and scale.share(1e-2) == pytest.approx(0.5)


def test_a_logarithmic_scale_says_so():
    line = PlotLine("a", (0.0, 1.0, 2.0), (2e-5, 1e-3, 1e-3))
    one = Chart("learning rate", "", (line,))
    assert "learning rate, log scale" in texts(plots.draw(one, 60, 9))[0]
    assert texts(chart.draw(one, 40, 3, name="lr"))[1].startswith("  lr log")
    assert "log" not in "".join(texts(chart.draw(one, 40, 9)))


def test_a_tall_scale_is_told_between_its_ends_and_these_are_values_of_the_curve():
    one = Chart("loss", "", (RISING,))
    told = {rows: [t[: chart.AXIS].strip() for t in texts(chart.draw(one, 60, rows + 1))[:-1]]
            for rows in (5, 9, 33)}  # fmt: skip
    assert [list(filter(None, labels)) for labels in told.values()] == [
        ["99", "0"],
        ["99", "50", "0"],
        ["99", "74", "50", "25", "0"],
    ]


def test_a_value_that_is_not_known_leaves_a_gap():
    line = PlotLine(
        "a", tuple(map(float, range(9))), (1, 1, 1, math.nan, math.nan, math.nan, 2, 2, 2)
    )
    cells = dots(texts(chart.draw(Chart("a", "", (line,)), chart.AXIS + 9, 4, axis=False)))
    assert not any(x in (3, 4, 5) for row in cells for x in row)


def test_a_mark_points_at_its_step_and_says_its_value():
    one = Chart("loss", "", (RISING,), (MarkedStep(50, "8.1"), MarkedStep(70, None)))
    first, second, *_ = texts(chart.draw(one, chart.AXIS + 100, 8))
    assert first[chart.AXIS + 50 : chart.AXIS + 55] == "▼ 8.1" and first[chart.AXIS + 70] != "▼"
    assert second[chart.AXIS + 50] == "┊" and second[chart.AXIS + 70] == "┊"


def test_nothing_measured_is_said():
    assert texts(chart.draw(Chart("loss", "", (PlotLine("a", (), ()),)), 40, 5)) == [
        "loss: not measured."
    ]


values = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(-1e3, 1e3))


@given(st.lists(values, min_size=1, max_size=60), st.integers(24, 90), st.integers(1, 12))
def test_any_values_fit_into_any_size(series, width, height):
    one = Chart(
        "x",
        "ms",
        (PlotLine("x", tuple(map(float, range(len(series)))), tuple(series)),),
        (MarkedStep(3, "3"),),
    )
    rows = chart.draw(one, width, height)
    assert len(rows) <= height and all(row_width(row) <= width for row in rows)


COLUMNS = Columns(
    "data in each step", 0, 99, ((3.0, 0, 1.0, 2.0, 0, 0, 0, 0, 0, 0),) * 40, ("data",)
)
BARS = Bars(
    "step",
    "ms",
    (("own", "allocated"), ("waits", "track")),
    (
        Bar("rank 2", ((9.0, "allocated"), (1.0, "track")), True),
        Bar("rank 0", ((5.0, "allocated"), (5.0, "track"))),
    ),
)
LISTING = Listing(
    "where each rank stands",
    (("rank 0 backward " + "x" * 200, False), ("rank 1 data train.py:4", True)),
)


@pytest.mark.parametrize("plot", [COLUMNS, BARS, LISTING, Chart("loss", "", (RISING,))])
@pytest.mark.parametrize("size", [(190, 20), (78, 9), (40, 3), (30, 1)])
def test_no_plot_is_wider_or_higher_than_its_place(plot, size):
    rows = plots.draw(plot, *size)
    assert len(rows) <= size[1] and all(row_width(row) <= size[0] for row in rows)


def test_the_phase_in_focus_is_at_the_bottom_with_its_mean_and_share():
    rows = plots.draw(COLUMNS, 80, 10, mono=True)
    lines = texts(rows)
    assert "data 3.0 ms, 50 %" in lines[0] and "ddd" in lines[-2] and "···" in lines[4]
    assert [row[1][1] for row in plots.draw(COLUMNS, 80, 10)[-2:-1]] == ["data"]


def test_bars_are_on_one_scale_and_mark_the_slow_one():
    _, slow, fast = texts(plots.draw(BARS, 80, 5))
    cells = [sum(line.count(glyph) for glyph in plots.PARTS) for line in (slow, fast)]
    assert slow.startswith("▲ rank 2") and cells[0] == cells[1]
    assert slow.count("━") > 8 * slow.count("╌") and fast.count("━") == fast.count("╌")
    assert slow.split()[-2:] == ["9.00", "1.00"] and fast.split()[-2:] == ["5.00", "5.00"]


@pytest.mark.parametrize("plot", [COLUMNS, BARS])
@pytest.mark.parametrize("width", [40, 56, 76, 116])
def test_a_legend_stands_at_every_width(plot, width):
    text = "\n".join(row_text(row) for row in plots.draw(plot, width, 9))
    names = plot.focus if isinstance(plot, Columns) else [name for name, _ in plot.legend]
    assert all(name in text for name in names)


def test_bars_that_do_not_fit_are_counted():
    many = replace(BARS, bars=BARS.bars[:1] * 8)
    lines = texts(plots.draw(many, 80, 6))
    assert lines[-1].strip() == "and 4 more" and len(lines) == 6
    assert "more" not in "".join(texts(plots.draw(many, 80, 9)))
