"""Heat map of all ranks, two to a cell, beside those whose own work is longest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gputop.render import numbers
from gputop.render.bars import merged
from gputop.render.rows import Row, beside, clip, left, right
from gputop.widgets.standings import STANDS_OUT, RankTimes
from gputop_analysis.text import with_minus

HEAT: tuple[tuple[float, str, str], ...] = (
    (0.95, "heat0", "░"),
    (1.02, "heat1", "▒"),
    (1.05, "heat2", "▓"),
    (1.15, "heat3", "█"),
    (float("inf"), "heat4", "█"),
)
"""Own work against the median rank: upper limit of the ratio, style, glyph where there is no
colour. Finer than that of step times, since whole steps are less even than the work of ranks in
step.
"""
Marks = Mapping[int, tuple[str, str]]
"""Glyph and style of the worst finding of a rank, by its number."""
WORST = 5
SIDE = 49
"""Cells of the list beside the map."""


def heat(ratio: float) -> tuple[str, str]:
    """Style and colourless glyph of own work that is ``ratio`` times the median."""
    return next((style, glyph) for limit, style, glyph in HEAT if not ratio >= limit)


def columns_of(count: int, width: int, height: int) -> int:
    """Ranks in a row of the map: square where that fits, wider where there are few rows."""
    side = math.ceil(math.sqrt(count))
    needed_columns = math.ceil(count / max(2 * height, 1))
    return max(min(max(side, needed_columns), max(width, 1)), 1)


def draw(
    standings: Sequence[RankTimes],
    width: int,
    height: int,
    *,
    cursor: int | None = None,
    mono: bool = False,
    marks: Marks | None = None,
) -> list[Row]:
    """The map, and beside it where there is room the ranks that findings name and the slowest."""
    marks = marks or {}
    room = width - SIDE - 3 if width >= SIDE + 27 else width
    columns = columns_of(len(standings), room, height)
    cells = min(max(room // columns, 1), 3)
    rows = [
        _row(standings, y, columns, cells=cells, cursor=cursor, mono=mono, marks=marks)
        for y in range(min(height, math.ceil(math.ceil(len(standings) / columns) / 2)))
    ]
    if room == width:
        return rows
    listed = worst(standings, width - columns * cells - 3, cursor, mono, marks)[:height]
    return beside(rows, columns * cells, listed, gap=3)


def cells_of(count: int, width: int, height: int) -> tuple[int, int]:
    """Ranks in a row and cells of each, as ``draw`` lays them out: what a click needs."""
    room = width - SIDE - 3 if width >= SIDE + 27 else width
    columns = columns_of(count, room, height)
    return columns, min(max(room // columns, 1), 3)


def _row(
    standings: Sequence[RankTimes],
    y: int,
    columns: int,
    *,
    cells: int,
    cursor: int | None,
    mono: bool,
    marks: Marks,
) -> Row:
    """Two rows of ranks: the upper one is the foreground of upper half blocks."""
    row = []
    for x in range(columns):
        above, below = 2 * y * columns + x, (2 * y + 1) * columns + x
        if above >= len(standings):
            break
        pair = [index for index in (above, below) if index < len(standings)]
        marked = [mark for index in pair if (mark := marks.get(standings[index].rank.rank))]
        if mono:
            slowest = max(standings[index].ratio for index in pair)
            glyph = marked[0][0] if marked else heat(slowest)[1]
            row.append((("◆" if cursor in pair else glyph) * cells, "text"))
            continue
        styles = []
        for index in pair:
            styles.append("accent" if index == cursor else _style(standings[index], marks))
        row.append(("▀" * cells, "/".join(styles)))
    return merged(row)


def _style(standing: RankTimes, marks: Marks) -> str:
    """The colour of a rank: that of its own work by the legend. A finding gives one to a rank whose
    work is as the others', and red to one that it calls critical.
    """
    mark = marks.get(standing.rank.rank)
    if mark and (mark[1] == "critical" or standing.ratio < STANDS_OUT):
        return mark[1]
    return heat(standing.ratio)[0]


def worst(
    standings: Sequence[RankTimes],
    width: int,
    cursor: int | None,
    mono: bool,
    marks: Marks | None = None,
) -> list[Row]:
    """The ranks that findings name, then those with the most own work, the chosen one, and what the
    colours mean.
    """
    marks = marks or {}
    head = right("rank", 8) + right("own ms", 10) + right("vs median", 11) + "  slow in"
    rows: list[Row] = [[(head, "muted")]]
    named_first = sorted(standings, key=lambda s: (s.rank.rank not in marks, -s.ratio))
    for standing in named_first[:WORST]:
        rows.append(_line(standing, chosen=False, mark=marks.get(standing.rank.rank)))
    if cursor is not None and cursor < len(standings):
        rows += [
            [],
            [("at the cursor, enter opens it", "muted")],
            _line(standings[cursor], chosen=True, mark=marks.get(standings[cursor].rank.rank)),
        ]
    rows += [[], legend(mono)]
    return [clip(row, width) for row in rows]


def _line(standing: RankTimes, chosen: bool, mark: tuple[str, str] | None) -> Row:
    ground = "/cursor" if chosen else ""
    style = heat(standing.ratio)[0]
    slow = standing.ratio >= STANDS_OUT
    digits = numbers.digits_for(standing.own_ms)
    glyph, glyph_style = mark or ("▲" if slow else " ", "high")
    return [
        (glyph, glyph_style + ground),
        (right(str(standing.rank.rank), 7), "text" + ground),
        (right(numbers.ms_column(standing.own_ms, digits), 10), "text" + ground),
        (right(against_median(standing.ratio), 11), (style if slow else "muted") + ground),
        ("  " + left(standing.slow_in, 16), ("high" if slow else "muted") + ground),
    ]


def against_median(ratio: float) -> str:
    """``+32 %``, ``11x`` of ten times and more, ``=`` where it is less than half a percent off."""
    if ratio >= 10:
        return f"{ratio:,.0f}x"
    percent = round(100 * (ratio - 1))
    return "=" if percent == 0 else with_minus(f"{percent:+d} %")


def legend(mono: bool = False) -> Row:
    """What the colours of own work against the median rank say."""
    row: Row = [("own work / median ", "muted")]
    for ratio, words in (
        (0.8, "<0.95"),
        (1.0, "1"),
        (1.03, ">1.02"),
        (1.1, ">1.05"),
        (2.0, ">1.15"),
    ):
        style, glyph = heat(ratio)
        row += [(" " + (glyph if mono else "▇"), style), (words, "muted")]
    return row
