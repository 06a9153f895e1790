"""Curves over steps in braille dots, the range at the left, steps below, limit, marks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gputop.feed.plots import Chart, PlotLine
from gputop.render import numbers
from gputop.render.bars import merged
from gputop.render.braille import BITS
from gputop.render.rows import Row, clip, left, right, say

AXIS = 9
DASH = 3
"""Dots of a dash, and of the gap after it."""
LARGEST = 1e100
_LOG_FROM = 40.0
"""Largest by smallest value from which on the scale is logarithmic, where all are positive."""
_TICKS = ((20, 4), (7, 2))
"""Rows from which on the scale is told at so many places above its lowest."""

Cells = list[list[tuple[str, str]]]


class Scale:
    """Maps a value to a share of the height, 0 below and 1 above; keeps inside."""

    def __init__(self, low: float, high: float, log: bool = False):
        self.low, self.high, self.log = low, high, log

    def share(self, value: float) -> float:
        """Position of ``value`` between the ends of the axis, 0..1."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0)

    def at(self, share: float) -> float:
        """The value at a share of the height."""
        if self.log:
            return math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        return self.low + share * (self.high - self.low)


def finite(values: Sequence[float]) -> list[float]:
    """Those that are numbers, and small enough to compute with."""
    return [v for v in values if abs(v) < LARGEST]


def scale_of(chart: Chart) -> Scale | None:
    """Range of smallest to largest value, a near limit included; None without any value."""
    values = sorted(v for line in chart.lines for v in finite(line.values))
    if not values:
        return None
    low, high = values[0], values[-1]
    if chart.level is not None and chart.level <= 3 * high:
        low, high = min(low, chart.level), max(high, chart.level)
    if low > 0 and high / low > _LOG_FROM and not chart.from_zero:
        return Scale(low, high, log=True)
    if chart.from_zero:
        top = 1.0
        if high > 0:
            top = numbers.nice_ceiling(high)
        return Scale(min(low, 0.0), top)
    if high > low:
        return Scale(low, high)
    room = abs(high) * 0.05 or 1.0
    return Scale(low - room if low else low, high + room)


def told_log(title: str, scale: Scale | None) -> str:
    """The title of a chart, which says where its scale is not the usual one."""
    return f"{title}, log scale" if scale is not None and scale.log else title


def step_range(chart: Chart) -> tuple[float, float]:
    """First and last step of all curves."""
    firsts = [line.steps[0] for line in chart.lines if line.steps]
    lasts = [line.steps[-1] for line in chart.lines if line.steps]
    if firsts:
        return (min(firsts), max(lasts))
    return (0.0, 1.0)


def draw(
    chart: Chart,
    width: int,
    height: int,
    steps: tuple[float, float] | None = None,
    axis: bool = True,
    *,
    name: str = "",
) -> list[Row]:
    """The chart in ``width`` x ``height`` cells.

    Args:
        chart: what to draw.
        width: in cells, with the labels of the scale.
        height: in rows, with the row of the axis where there is one.
        steps: range of the steps, for charts that share an axis; the chart's own without.
        axis: whether the last row says which steps are shown.
        name: stands beside the middle row, for charts without a title line.
    """
    scale = scale_of(chart)
    if scale is None:
        return say(f"{chart.title}: not measured.", width)
    if height < 3:
        return [_in_words(chart, width)][:height]
    steps = steps or step_range(chart)
    cells, rows = width - AXIS, height - int(axis)
    grid = _plot(chart, cells, rows=rows, scale=scale, steps=steps)
    result: list[Row] = []
    if name and scale.log and len(name) + len(" log") < AXIS:
        name += " log"
    labels = _labels(scale, rows)
    for y, line in enumerate(grid):
        if name and y == rows // 2:
            result.append([(right(name, AXIS - 1) + " ", "text"), *merged(line)])
            continue
        result.append([(right(labels.get(y, ""), AXIS - 1) + " ", "muted"), *merged(line)])
    if axis:
        return [*result, axis_row(steps, width, chart.axis)]
    return result


def _in_words(chart: Chart, width: int) -> Row:
    row: Row = [(chart.title + " ", "muted")]
    for line in chart.lines:
        if values := finite(line.values):
            row.append(
                (
                    f"{numbers.scalar(values[0])} → {numbers.scalar(values[-1])} {chart.unit} ",
                    "text",
                )
            )
    return clip(row, width)


def _labels(scale: Scale, rows: int) -> dict[int, str]:
    """What stands beside which row: the ends, and between them round values where they lie."""
    parts = next((parts for least_rows, parts in _TICKS if rows >= least_rows), 1)
    reach, dots = abs(scale.high - scale.low) / (2 * rows), 4 * rows - 1
    labels: dict[int, str] = {}
    for part in range(parts + 1):
        value = scale.at(part / parts)
        if 0 < part < parts and not scale.log:
            value = _roundest(value, reach)
        if abs(value) < 1e-12 * abs(scale.high):
            value = 0.0
        y = (dots - round(scale.share(value) * dots)) // 4
        labels[y] = numbers.scalar_in(value, AXIS - 1)
    return labels


def _roundest(value: float, reach: float) -> float:
    """The value with the fewest digits that lies at most ``reach`` from ``value``."""
    if not reach > 0:
        return value
    digits = 10.0 ** math.floor(math.log10(reach) + 1)
    while abs(round(value / digits) * digits - value) > reach:
        digits /= 10
    return round(value / digits) * digits


def axis_row(steps: tuple[float, float], width: int, axis: str = "step") -> Row:
    """``step 0 … 1,200`` below the curves."""
    if axis == "s":
        first, last = numbers.clock(steps[0]), numbers.clock(steps[1])
    else:
        first, last = f"{axis} {steps[0]:,.0f}", f"{steps[1]:,.0f}"
    cells = width - AXIS
    return [(" " * AXIS + first + right(last, max(cells - len(first), len(last))), "muted")]


def column_of(step: float, steps: tuple[float, float], cells: int) -> int:
    """The cell in which a step lies."""
    return min(cells - 1, max(0, int((step - steps[0]) / ((steps[1] - steps[0]) or 1.0) * cells)))


def _plot(chart: Chart, cells: int, rows: int, scale: Scale, steps: tuple[float, float]) -> Cells:
    grid: Cells = [[(" ", "")] * cells for _ in range(rows)]
    if chart.level is not None and scale.low <= chart.level <= scale.high:
        y = min(rows - 1, int((1 - scale.share(chart.level)) * rows))
        grid[y] = [("╌", "high")] * cells
    for mark in chart.marks:
        if steps[0] <= mark.step <= steps[1]:
            x = column_of(mark.step, steps, cells)
            for y in range(rows):
                grid[y][x] = ("┊", mark.style)
    for line in chart.lines:
        _draw_line(grid, line, cells=cells, rows=rows, scale=scale, steps=steps)
    for mark in chart.marks:
        if mark.label is not None and steps[0] <= mark.step <= steps[1]:
            _write_mark(grid, mark.label, mark.style, column_of(mark.step, steps, cells))
    return grid


def _write_mark(grid: Cells, label: str, style: str, x: int) -> None:
    """``▼ label`` at the top of a mark; the label only where it does not cover another one."""
    cells = len(grid[0])
    grid[0][x] = ("▼", style)
    if x + 2 + len(label) <= cells:
        start = x + 2
    else:
        start = x - 1 - len(label)
    covered = grid[0][max(start, 0) : start + len(label)]
    if label and start >= 0 and all(text == " " or text == "╌" for text, _ in covered):
        grid[0][start : start + len(label)] = [(char, style) for char in label]


def _draw_line(
    grid: Cells, line: PlotLine, *, cells: int, rows: int, scale: Scale, steps: tuple[float, float]
) -> None:
    """Connect the points; a gap where a value is not a number."""
    bits: dict[tuple[int, int], int] = {}
    columns, lowest = 2 * cells, 4 * rows - 1
    span = (steps[1] - steps[0]) or 1.0
    before: tuple[int, int] | None = None
    count = 0
    for step, value in zip(line.steps, line.values, strict=True):
        if not abs(value) < LARGEST or not steps[0] <= step <= steps[1]:
            before = None
            continue
        x = min(columns - 1, int((step - steps[0]) / span * columns))
        y = lowest - round(scale.share(value) * lowest)
        for dot_x, dot_y in _between(before, (x, y)):
            count += 1
            if line.dashed and count % (2 * DASH) >= DASH:
                continue
            key = dot_y // 4, dot_x // 2
            bits[key] = bits.get(key, 0) | BITS[dot_y % 4][dot_x % 2]
        before = x, y
    for (y, x), value in bits.items():
        grid[y][x] = (chr(0x2800 + value), line.style)


def _between(before: tuple[int, int] | None, here: tuple[int, int]) -> list[tuple[int, int]]:
    """Dots from the last point to this one, without the last."""
    if before is None:
        return [here]
    (x0, y0), (x1, y1) = before, here
    if x0 == x1 and y0 != y1:
        step = 1 if y1 > y0 else -1
        return [(x0, y) for y in range(y0 + step, y1 + step, step)]
    count = max(abs(x1 - x0), abs(y1 - y0), 1)
    between = []
    for i in range(1, count + 1):
        between.append((round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)))
    return between


def legend(lines: Sequence[PlotLine]) -> Row:
    """Names of the curves in their colours."""
    row: Row = []
    for line in lines:
        row += [
            ("╌ " if line.dashed else "━ ", line.style),
            (left(line.name, len(line.name)) + "  ", "muted"),
        ]
    return row
