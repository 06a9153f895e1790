"""Heat map of all ranks, two to a cell, beside those whose own work is longest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gputop.render import numbers
from gputop.render.bars import merged
from gputop.render.rows import Row, beside, clip, left, right
from gputop.widgets.standings import STANDS_OUT, RankTimes
from gputop_analysis.text import with_minus

HEATS = (("heat0", "░"), ("heat1", "▒"), ("heat2", "▓"), ("heat3", "█"), ("heat4", "▲"))
"""Own work against the median rank, the least first: style, glyph where there is no colour."""
OF_MEANS = (0.95, 1.02, 1.05, 1.15)
"""Ratios at which the next heat begins."""
OF_STEPS = (0.9, 1.1, 1.25, 1.5)
"""The same for single steps, which are less even than their means."""
Marks = Mapping[int, tuple[str, str]]
"""Glyph and style of the worst finding of a rank, by its number."""
WORST = 5
OWN_WORK = "own work / median"
SIDE = 49
"""Cells of the list beside the map."""
NODE = 8
"""Ranks of a usual node: rows of whole nodes, where there is room."""


class Layout(NamedTuple):
    """Where the ranks of the map stand."""

    lead: int
    """Cells of the number at a row's start."""
    columns: int
    """Ranks in a row."""
    cells: int
    """Cells of each."""


def heat(ratio: float, limits: Sequence[float] = OF_MEANS) -> tuple[str, str]:
    """Style and colourless glyph of own work that is ``ratio`` times the median."""
    return HEATS[sum(ratio >= limit for limit in limits)]


def in_words(ratio: float) -> str:
    """Style of a figure that says the same: words need more contrast than what is drawn."""
    return {"heat2": "medium", "heat3": "high", "heat4": "critical"}.get(heat(ratio)[0], "muted")


def columns_of(count: int, width: int, height: int) -> int:
    """Ranks in a row of the map: square where that fits, wider where there are few rows."""
    side = math.ceil(math.sqrt(count))
    needed_columns = math.ceil(count / max(2 * height, 1))
    columns = max(min(max(side, needed_columns), max(width, 1)), 1)
    whole_nodes = math.ceil(columns / NODE) * NODE
    return whole_nodes if whole_nodes <= width else columns


def layout_of(count: int, width: int, height: int) -> Layout:
    """The map in a panel of ``width`` x ``height`` cells; a list beside it has room of its own."""
    lead = len(f"{count:,}") + 1
    room = (width - SIDE - 3 if width >= SIDE + 27 else width) - lead
    columns = columns_of(count, room, height)
    return Layout(lead, columns, min(max(room // columns, 1), 3))


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
    lead, columns, cells = layout = layout_of(len(standings), width, height)
    rows = [
        _row(standings, y, layout, cursor=cursor, mono=mono, marks=marks)
        for y in range(min(height, math.ceil(math.ceil(len(standings) / columns) / 2)))
    ]
    if width < SIDE + 27:
        return rows
    taken = lead + columns * cells
    listed = worst(standings, width - taken - 3, cursor, mono, marks)[:height]
    return beside(rows, taken, listed, gap=3)


def _row(
    standings: Sequence[RankTimes],
    y: int,
    layout: Layout,
    *,
    cursor: int | None,
    mono: bool,
    marks: Marks,
) -> Row:
    """Two rows of ranks after the number of the first: the upper one is the foreground of upper
    half blocks.
    """
    lead, columns, cells = layout
    first = standings[2 * y * columns].rank.rank
    row = [(right(f"{first:,}", lead - 1) + " ", "muted")]
    for x in range(columns):
        above, below = 2 * y * columns + x, (2 * y + 1) * columns + x
        if above >= len(standings):
            break
        pair = [index for index in (above, below) if index < len(standings)]
        marked = [mark for index in pair if (mark := marks.get(standings[index].rank.rank))]
        if mono:
            slowest = max(standings[index].ratio for index in pair)
            glyph = heat(slowest)[1]
            if marked and slowest < STANDS_OUT:
                glyph = marked[0][0]
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
    """The ranks that findings name, then those that stand out, the chosen one, and what the colours
    mean.
    """
    marks = marks or {}
    head = right("rank", 8) + right("own ms", 10) + right("vs median", 11) + "  slow in"
    odd = [s for s in standings if s.rank.rank in marks or s.ratio >= STANDS_OUT]
    odd.sort(key=lambda s: (s.rank.rank not in marks, -s.ratio))
    rows: list[Row] = [[(head if odd else "no rank works longer than the others", "muted")]]
    for standing in odd[:WORST]:
        rows.append(_line(standing, chosen=False, mark=marks.get(standing.rank.rank)))
    if len(odd) > WORST:
        rows.append([(f"        and {len(odd) - WORST:,} more", "muted")])
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
    slow = standing.ratio >= STANDS_OUT
    digits = numbers.digits_for(standing.own_ms)
    glyph, glyph_style = mark or ("▲" if slow else " ", "high")
    return [
        (glyph, glyph_style + ground),
        (right(str(standing.rank.rank), 7), "text" + ground),
        (right(numbers.ms_column(standing.own_ms, digits), 10), "text" + ground),
        (right(against_median(standing.ratio), 11), in_words(standing.ratio) + ground),
        ("  " + left(standing.slow_in, 16), ("high" if slow else "muted") + ground),
    ]


def against_median(ratio: float) -> str:
    """``+32 %``, ``11x`` of ten times and more, ``=`` where it is less than half a percent off."""
    if ratio >= 10:
        return f"{ratio:,.0f}x"
    percent = round(100 * (ratio - 1))
    return "=" if percent == 0 else with_minus(f"{percent:+d} %")


def legend(mono: bool = False, limits: Sequence[float] = OF_MEANS, words: str = OWN_WORK) -> Row:
    """What the colours of own work against the median rank say."""
    least, *above = limits
    row: Row = [(words + " ", "muted")]
    ranges = (f"<{least:g}", "1", *(f">{limit:g}" for limit in above))
    for (style, glyph), text in zip(HEATS, ranges, strict=True):
        row += [(" " + (glyph if mono else "▇"), style), (text, "muted")]
    return row
