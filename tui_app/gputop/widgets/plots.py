"""Any plot as rows, under a title line of its own."""

from __future__ import annotations

from itertools import cycle

from gputop import palette
from gputop.feed.plots import Bars, Chart, Columns, Listing, Plot
from gputop.render import chart, numbers
from gputop.render.bars import apportion, stacked_columns
from gputop.render.rows import Row, left, right, row_width, shorten, shorten_middle

LABEL = 12
LEAST = 3
"""Rows of a picture, which a legend in lines of its own leaves to it."""
PARTS = "━╌▓░"
"""Glyphs of a legend's names in their order, and of their parts of bars: colour is not all that
tells them apart."""


def ruled(title: str, note: Row, width: int) -> Row:
    """``── title ───────── note``."""
    start: Row = [("── ", "rule"), (shorten(title, width - 8), "text"), (" ", "")]
    room = width - row_width(start) - 4
    end: Row = [(" ", ""), *note] if note and row_width(note) <= room else []
    return [*start, ("─" * max(width - row_width(start) - row_width(end), 0), "rule"), *end]


def headed(title: str, legend: Row, width: int) -> list[Row]:
    """The title line with the legend's pairs of mark and name, or these in lines of their own."""
    line = ruled(title, legend, width)
    if not legend or line[-len(legend) :] == legend:
        return [line]
    rows: list[Row] = [line, []]
    for mark, name in zip(legend[::2], legend[1::2], strict=True):
        if row_width([*rows[-1], mark, name]) - 2 > width:
            rows.append([])
        rows[-1] = [*rows[-1], mark, name]
    return rows


def draw(plot: Plot, width: int, height: int, mono: bool = False) -> list[Row]:
    """The plot with its title and legend in at most ``height`` rows."""
    if height < 2:
        return []
    head = headed(_title(plot), _legend(plot), width)
    if height - len(head) < LEAST:
        head = head[:1]
    room = height - len(head)
    if isinstance(plot, Chart):
        drawn = chart.draw(plot, width, room)
    elif isinstance(plot, Columns):
        drawn = _columns(plot, width, room, mono)
    elif isinstance(plot, Bars):
        drawn = _bars(plot, width, room)
    else:
        drawn = _listing(plot, width, room)
    return [*head, *drawn]


def _title(plot: Plot) -> str:
    unit = plot.unit if isinstance(plot, (Chart, Bars)) else ""
    title = f"{plot.title}, {unit}" if unit else plot.title
    return chart.told_log(title, chart.scale_of(plot)) if isinstance(plot, Chart) else title


def _legend(plot: Plot) -> Row:
    """Pairs of a mark and a name."""
    if isinstance(plot, Chart):
        return chart.legend(plot.lines) if len(plot.lines) > 1 else []
    if isinstance(plot, Columns):
        return _phase_note(plot)
    row: Row = []
    if isinstance(plot, Bars):
        for glyph, (name, style) in zip(cycle(PARTS), plot.legend):
            row += [(f"{glyph} ", style), (f"{name}  ", "muted")]
    return row


def _phase_note(plot: Columns) -> Row:
    totals = [sum(column) for column in plot.phases_ms]
    row: Row = []
    for name in plot.focus:
        index = next(i for i, phase in enumerate(palette.PHASES) if phase.name == name)
        mean = sum(column[index] for column in plot.phases_ms) / max(len(totals), 1)
        share = mean * len(totals) / (sum(totals) or 1.0)
        row += [
            ("■ ", name),
            (f"{name} {numbers.duration_ms(mean)}, {numbers.percent(share)}  ", "muted"),
        ]
    return [*row, ("■ ", "track"), ("the rest", "muted")]


def _columns(plot: Columns, width: int, height: int, mono: bool) -> list[Row]:
    """What is in focus lies at the bottom, to compare heights; the rest is grey upon it."""
    order = [i for i, phase in enumerate(palette.PHASES) if phase.name in plot.focus]
    cells, rows = width - chart.AXIS, height - 1
    spread = _resampled(plot.phases_ms, cells)
    parts = [_focus_first(column, order) for column in spread]
    styles = [*(palette.PHASES[i].name for i in order), "track"]
    letters = [*(palette.PHASES[i].letter for i in order), "·"]
    totals = sorted(sum(part) for part in parts)
    top = numbers.nice_ceiling(
        (totals[min(len(totals) - 1, int(0.97 * len(totals)))] if totals else 1.0) * 1.05
    )
    result: list[Row] = []
    for y, row in enumerate(stacked_columns(parts, styles, letters, max(rows, 1), top, mono=mono)):
        if y == 0:
            label = numbers.duration_ms(top)
        elif y == rows - 1 and rows > 2:
            label = "0"
        else:
            label = ""
        result.append([(right(label, chart.AXIS - 1) + " ", "muted"), *row])
    return [*result, chart.axis_row((plot.first_step, plot.last_step), width)]


def _focus_first(column: tuple[float, ...], order: list[int]) -> list[float]:
    """Milliseconds of the phases in focus, then of all others together."""
    others_ms = sum(value for index, value in enumerate(column) if index not in order)
    return [*(column[index] for index in order), others_ms]


def _resampled(columns: tuple[tuple[float, ...], ...], cells: int) -> list[tuple[float, ...]]:
    """As many columns as there are cells: several averaged into one, or one repeated."""
    if not columns or cells < 1:
        return []
    result = []
    for x in range(cells):
        first = x * len(columns) // cells
        part = columns[first : max((x + 1) * len(columns) // cells, first + 1)]
        result.append(tuple(sum(values) / len(part) for values in zip(*part, strict=True)))
    return result


def _bars(plot: Bars, width: int, height: int) -> list[Row]:
    top = max((sum(value for value, _ in bar.parts) for bar in plot.bars), default=0.0)
    digits = numbers.digits_for(top)
    figures = 1
    if any(len(bar.parts) > 1 for bar in plot.bars):
        figures = len(plot.legend)
    cells = max(width - LABEL - 10 * figures, 4)
    glyphs = {style: glyph for glyph, (_, style) in zip(cycle(PARTS), plot.legend)}
    rows: list[Row] = []
    shown = plot.bars
    if len(shown) > height:
        shown = shown[: height - 1]
    for bar in shown:
        label: Row = [
            ("▲ " if bar.chosen else "  ", "high"),
            (left(bar.label, LABEL - 3) + " ", "text"),
        ]
        texts = [
            (right(numbers.ms_column(value, digits), 10), _figure_style(style))
            for value, style in bar.parts
        ]
        values = [value for value, _ in bar.parts]
        widths = apportion([*values, max(top - sum(values), 0.0)], cells)
        drawn: Row = [
            (glyphs.get(style, PARTS[0]) * n, style)
            for n, (_, style) in zip(widths, bar.parts, strict=False)  # the last is what is free
            if n
        ]
        rows.append([*label, *drawn, (" " * (cells - sum(widths[: len(values)])), ""), *texts])
    if more := len(plot.bars) - len(shown):
        rows.append([(f"  and {more:,} more", "muted")])
    return rows


def _figure_style(style: str) -> str:
    if style == "high":
        return style
    if style in ("track", "muted"):
        return "muted"
    return "text"


def _listing(plot: Listing, width: int, height: int) -> list[Row]:
    rows: list[Row] = []
    for text, matters in plot.lines[:height]:
        mark = ("▲ " if matters else "  ", "high")
        rows.append([mark, (shorten_middle(text, width - 2), "bold text" if matters else "text")])
    return rows
