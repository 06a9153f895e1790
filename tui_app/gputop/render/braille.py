"""A line drawn with braille dots: two columns and four rows of dots a cell."""

from __future__ import annotations

from collections.abc import Sequence

BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Dots of a cell by row and column, as bits above U+2800."""


def line(values: Sequence[float], width: int, height: int, low: float, high: float) -> list[str]:
    """``values`` over ``width`` x ``height`` cells, ``high`` at the upper edge, ``low`` below."""
    cells = [[0] * width for _ in range(height)]
    span = (high - low) or 1.0
    lowest_dot, columns = 4 * height - 1, 2 * width
    previous: int | None = None
    for x in range(columns):
        value = _sample(values, x, columns)
        share = min(max((value - low) / span, 0.0), 1.0)
        y = lowest_dot - round(share * lowest_dot)
        if previous is None:
            start, end = (y, y)
        else:
            start, end = (min(previous, y), max(previous, y))
        for dot in range(start, end + 1):
            cells[dot // 4][x // 2] |= BITS[dot % 4][x % 2]
        previous = y
    return [_row_text(row) for row in cells]


def _row_text(cells: Sequence[int]) -> str:
    """A row of cells by the bits of their dots; a cell without dots is a blank."""
    return "".join(chr(0x2800 + bits) if bits else " " for bits in cells)


def _sample(values: Sequence[float], x: int, columns: int) -> float:
    """Mean of the values in dot column ``x``, or the nearest of fewer values than columns."""
    first = x * len(values) // columns
    last = max((x + 1) * len(values) // columns, first + 1)
    part = values[first:last]
    return sum(part) / len(part)


_FILLED = ((0x00, 0x40, 0x44, 0x46, 0x47), (0x00, 0x80, 0xA0, 0xB0, 0xB8))
"""Dots of a left and of a right half of a cell that is filled from below, by height 0 to 4."""


def area(values: Sequence[float], width: int, top: float, dots: int = 4) -> str:
    """The newest values as a row of dots from 0 to ``top``, right-aligned; NaN leaves a gap.

    ``dots`` are of the cell's height: three leave a gap to the row above, where rows are stacked.
    """
    columns = 2 * width
    if len(values) > columns:
        values = [_known_mean(values, x, columns) for x in range(columns)]
    elif values:
        per_value = columns // len(values)
        values = [value for value in values for _ in range(per_value)]
    heights = [0] * (columns - len(values)) + [_dots(value / top, dots) for value in values]
    pairs = zip(heights[::2], heights[1::2], strict=True)
    cells = [_FILLED[0][left_height] | _FILLED[1][right] for left_height, right in pairs]
    return _row_text(cells)


def _known_mean(values: Sequence[float], x: int, columns: int) -> float:
    first = x * len(values) // columns
    last = max((x + 1) * len(values) // columns, first + 1)
    part = [value for value in values[first:last] if value == value]
    return sum(part) / len(part) if part else float("nan")


def _dots(share: float, most: int) -> int:
    """Dots for a share of the height: at least one where it was measured."""
    if share != share:
        return 0
    return min(most, max(1, round(most * share)))


def area_rows(values: Sequence[float], width: int, height: int, top: float) -> list[str]:
    """Values over ``width`` cells as an area of ``height`` rows from 0 to ``top``; NaN: a gap.

    The uppermost dots stay free, so that areas below each other do not run into one.
    """
    columns = 2 * width
    rows = [[0] * width for _ in range(height)]
    for x in range(columns):
        if len(values):
            value = _known_mean(values, x, columns)
        else:
            value = float("nan")
        dots = _dots(value / top, 4 * height - 1)
        for y in range(height):
            filled = min(4, max(0, dots - 4 * (height - 1 - y)))
            rows[y][x // 2] |= _FILLED[x % 2][filled]
    return [_row_text(row) for row in rows]
