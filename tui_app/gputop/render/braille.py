"""A line drawn with braille dots: two columns and four rows of dots a cell."""

from __future__ import annotations

from collections.abc import Sequence

_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def line(values: Sequence[float], width: int, height: int, low: float, high: float) -> list[str]:
    """``values`` spread over ``width`` x ``height`` cells, ``high`` at the upper edge, ``low`` at
    the lower.
    """
    cells = [[0] * width for _ in range(height)]
    span = (high - low) or 1.0
    lowest_dot, columns = 4 * height - 1, 2 * width
    previous: int | None = None
    for x in range(columns):
        value = _sample(values, x, columns)
        share = min(max((value - low) / span, 0.0), 1.0)
        y = lowest_dot - round(share * lowest_dot)
        start, end = (y, y) if previous is None else (min(previous, y), max(previous, y))
        for dot in range(start, end + 1):
            cells[dot // 4][x // 2] |= _BITS[dot % 4][x % 2]
        previous = y
    return ["".join(chr(0x2800 + bits) if bits else " " for bits in row) for row in cells]


def _sample(values: Sequence[float], x: int, columns: int) -> float:
    """Mean of the values in dot column ``x``, or the nearest one where there are fewer values than
    columns.
    """
    first = x * len(values) // columns
    last = max((x + 1) * len(values) // columns, first + 1)
    part = values[first:last]
    return sum(part) / len(part)
