"""Bars and charts out of characters."""

from hypothesis import given
from hypothesis import strategies as st

from gputop.render import bars, braille
from gputop.render.rows import row_text, row_width

STYLES, LETTERS = ["data", "forward", "backward"], ["d", "f", "b"]


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_bar_fills_its_width(share, width):
    row = bars.bar(share, width, "data")
    assert row_width(row) == width
    assert abs(row_text(row).count("━") - share * width) <= 1


def test_a_bar_shows_even_a_thousandth():
    assert row_text(bars.bar(0.001, 10, "data")) == "╸─────────"
    assert row_text(bars.bar(0.0, 4, "data")) == "────"
    assert bars.bar(0.8, 0, "data") == []
    assert row_text(bars.bar(float("nan"), 4, "data")) == "────"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=10), st.integers(0, 100))
def test_apportioned_cells_add_up(values, cells):
    parts = bars.apportion(values, cells)
    assert sum(parts) == (cells if sum(values) > 0 else 0)
    assert all(part >= 0 for part in parts)


def test_stacked_bar_reads_without_colour():
    assert row_text(bars.stacked_bar([1, 1, 2], STYLES, LETTERS, 8, mono=True)) == "ddffbbbb"


def test_stacked_columns_stand_on_zero_and_keep_the_order():
    rows = bars.stacked_columns([(2.0, 1.0, 1.0)], STYLES, LETTERS, 4, 4.0, mono=False)
    assert [row[0][1] for row in rows] == ["backward", "forward", "data", "data"]
    assert all(row_text(row) == "█" for row in rows)


def test_a_boundary_inside_a_cell_shows_both_parts():
    rows = bars.stacked_columns([(0.5, 0.5, 0.0)], STYLES, LETTERS, 1, 1.0, mono=False)
    assert rows == [[("▄", "data/forward")]]


def test_a_column_above_the_scale_is_marked():
    rows = bars.stacked_columns([(9.0, 0, 0), (1.0, 0, 0)], STYLES, LETTERS, 3, 3.0, mono=False)
    assert row_text(rows[0]) == "↑ "


def test_layered_bar_marks_the_peak_and_gives_every_part_a_cell():
    row = bars.layered_bar([(0.1, "allocated", "━"), (4.9, "reserved", "━")], 7.5, 10.0, 10)
    assert row_text(row) == "━━━━━──┃──"
    assert row[0] == ("━", "allocated")


def test_layered_bar_without_a_total_is_blank():
    assert row_text(bars.layered_bar([(1.0, "allocated", "━")], 1.0, float("nan"), 5)) == "     "


def test_sparks_leave_gaps_where_nothing_was_measured():
    assert row_text(bars.spark([0, 50, float("nan"), 100], 6, 100, "meter")) == "  ▁▅ █"


def test_braille_line_goes_from_corner_to_corner():
    lines = braille.line([0.0, 1.0, 2.0, 3.0], 2, 1, 0.0, 3.0)
    assert len(lines) == 1 and len(lines[0]) == 2
    assert ord(lines[0][0]) & 0x40 and ord(lines[0][1]) & 0x08


def test_trends_in_rows_below_each_other_do_not_run_into_one():
    upper_dots = 0x01 | 0x08
    full = braille.area([100.0] * 8, 4, 100.0, 3)
    assert all(ord(char) - 0x2800 & upper_dots == 0 for char in full)
    assert braille.area([100.0] * 8, 4, 100.0) != full
    rows = braille.area_rows([100.0] * 8, 4, 2, 100.0)
    assert all(ord(char) - 0x2800 & upper_dots == 0 for char in rows[0])
    assert rows[1] == chr(0x28FF) * 4
