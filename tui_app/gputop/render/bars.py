"""Bars, stacked bars, stacked columns and strip charts out of block characters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gputop.render.rows import Row

LOWER = " ▁▂▃▄▅▆▇█"
SPARK = "▁▂▃▄▅▆▇█"
FULL, NEARLY_FULL = 0.95, 0.85
"""Shares of a memory from which on it is drawn as critical, and as high."""


def bar(share: float, width: int, style: str) -> Row:
    """A heavy line of ``share`` (0..1) of ``width`` cells, to half a cell, on a light one."""
    if width < 1:
        return []
    if share == share:
        share = min(max(share, 0.0), 1.0)
    else:
        share = 0.0
    halves = max(round(share * width * 2), 1 if share > 0 else 0)
    full, half = divmod(halves, 2)
    row: Row = [("━" * full + "╸" * half, style)] if halves else []
    blank = width - full - half
    if blank > 0:
        return [*row, ("─" * blank, "track")]
    return row


def layered_bar(
    parts: Sequence[tuple[float, str, str]], mark: float, total: float, width: int
) -> Row:
    """``(value, style, glyph)`` parts on a light line of ``total``, an upright at ``mark``."""
    if width < 3 or not total > 0:
        return [(" " * max(width, 0), "")]
    cells = [("─", "track")] * width
    start, free = 0.0, 0
    for value, style, glyph in parts:
        end = start + (value if value > 0 else 0.0)
        high = max(round(end / total * width), free + (end > start))
        for x in range(free, min(high, width)):
            cells[x] = (glyph, style)
        start, free = end, high
    if mark > 0:
        cells[min(width - 1, int(mark / total * width))] = ("┃", "accent")
    return merged(cells)


def merged(cells: Sequence[tuple[str, str]]) -> Row:
    """The cells with neighbours of one style joined."""
    row: Row = []
    for text, style in cells:
        if row and row[-1][1] == style:
            row[-1] = (row[-1][0] + text, style)
        else:
            row.append((text, style))
    return row


def apportion(values: Sequence[float], cells: int) -> list[int]:
    """Whole cells for each value, adding up to ``cells`` exactly (largest remainder)."""
    total = sum(v for v in values if v > 0)
    if total <= 0 or cells <= 0:
        return [0] * len(values)
    exact = [max(v, 0.0) * cells / total for v in values]
    result = [int(e) for e in exact]
    order = sorted(range(len(values)), key=lambda i: exact[i] - result[i], reverse=True)
    for index in order[: cells - sum(result)]:
        result[index] += 1
    return result


def stacked_bar(
    values: Sequence[float],
    styles: Sequence[str],
    letters: Sequence[str],
    width: int,
    mono: bool,
    *,
    block: str = "█",
) -> Row:
    """One bar split among ``values``; letters stand for the parts where there is no colour."""
    cells = apportion(values, width)
    pieces = []
    for n, style, letter in zip(cells, styles, letters, strict=True):
        if n:
            pieces.append(((letter if mono else block) * n, style))
    return pieces


def spark(values: Sequence[float], width: int, top: float, style: str) -> Row:
    """The last ``width`` values as a row of blocks, scaled to 0..``top``; a gap: not measured."""
    shown = list(values[-width:])
    text = "".join(_spark_char(v, top) for v in shown)
    if len(shown) < width:
        return [(" " * (width - len(shown)), ""), (text, style)]
    return [(text, style)]


def _spark_char(value: float, top: float) -> str:
    if value != value or top <= 0:
        return " "
    return SPARK[min(7, max(0, int(value / top * 8)))]


def stacked_columns(
    columns: Sequence[Sequence[float]],
    styles: Sequence[str],
    letters: Sequence[str],
    height: int,
    top: float,
    *,
    mono: bool,
) -> list[Row]:
    """Stacked columns, one cell wide each, ``height`` rows high, 0 at the bottom and ``top`` at the
    upper edge.

    A cell that holds a boundary shows its two largest parts, the lower one as foreground of a lower
    block.
    """
    grid = [
        _column(tuple(column), tuple(styles), tuple(letters), height=height, top=top, mono=mono)
        for column in columns
    ]
    if grid:
        return [merged(row) for row in zip(*grid, strict=True)]
    return [[] for _ in range(height)]


@lru_cache(maxsize=4096)
def _column(
    values: tuple[float, ...],
    styles: tuple[str, ...],
    letters: tuple[str, ...],
    *,
    height: int,
    top: float,
    mono: bool,
) -> tuple[tuple[str, str], ...]:
    """Cells of a column, top row first. Remembered, as most columns stay between pictures."""
    units = [0.0]
    for value in values:
        units.append(units[-1] + max(value, 0.0) / top * height)
    clipped = units[-1] > height + 0.5
    cells = []
    for y in range(height - 1, -1, -1):
        cells.append(_cell(units, styles, letters=letters, y=y, mono=mono))
    if clipped and cells:
        cells[0] = ("↑", cells[0][1].split("/")[0])
    return tuple(cells)


def _cell(
    edges: Sequence[float], styles: Sequence[str], letters: Sequence[str], y: int, mono: bool
) -> tuple[str, str]:
    inside: list[tuple[float, int]] = []
    for index in range(len(styles)):
        low, high = max(edges[index], y), min(edges[index + 1], y + 1)
        if high - low > 1 / 16:
            inside.append((high - low, index))
    if not inside:
        return " ", ""
    if mono:
        _, index = max(inside)
        covered = sum(part for part, _ in inside)
        return (letters[index] if covered >= 0.5 else " "), styles[index]
    largest = sorted(sorted(inside, reverse=True)[:2], key=lambda part: part[1])
    covered = min(edges[-1] - y, 1.0)
    if len(largest) == 1:
        eighths = max(1, round(covered * 8))
        return LOWER[eighths], styles[largest[0][1]]
    if covered < 0.94:
        # the top of the column: background must stay, so only the larger part is shown
        return LOWER[max(1, round(covered * 8))], styles[max(inside)[1]]
    (below, low_index), (above, high_index) = largest
    eighths = min(7, max(1, round(below / (below + above) * 8)))
    return LOWER[eighths], f"{styles[low_index]}/{styles[high_index]}"


def fullness(share: float) -> str:
    """Style of a memory by how full it is."""
    if share >= FULL:
        return "critical"
    if share >= NEARLY_FULL:
        return "high"
    return "allocated"
