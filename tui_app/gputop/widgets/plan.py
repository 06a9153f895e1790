"""Where the panels lie, as a pure function of the size: every layout is designed, none is left to
chance.

Compact (80x24) shows the breakdown, the findings and one switchable panel; normal (120x40) and wide
(200x50) show framed panels in bands. A zoomed panel has the body for itself; a hidden one leaves
its room to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputop.panels import PANELS, Request, Want

GAP = 2
"""Cells between panels that have no frame."""
WIDE = 160
NORMAL_WIDTH = 100
NORMAL_HEIGHT = 29
AROUND = 7
"""Rows of a screen that header, tiles and footer take where there is room for frames."""
SHARES = {"normal": (59, 41), "wide": (57, 43)}
"""Percent of the width for the panels of a band that holds two."""


class Box(NamedTuple):
    """A rectangle of cells."""

    x: int
    y: int
    width: int
    height: int


def layout_name(width: int, height: int) -> str:
    """``compact``, ``normal`` or ``wide``."""
    if width < NORMAL_WIDTH or height < NORMAL_HEIGHT:
        return "compact"
    return "wide" if width >= WIDE else "normal"


def layout_of_screen(width: int, height: int) -> str:
    """The layout of a whole screen."""
    return layout_name(width, height - AROUND)


def layout_of(request: Request) -> str:
    """The layout that is asked for, else the one that suits the size."""
    return request.layout or layout_name(request.width, request.height)


def plan(request: Request) -> dict[str, Box]:
    """The box of every visible panel; panels that are not in it are not shown."""
    name = layout_of(request)
    margin = 1 if name == "compact" else 0
    body = Box(margin, 0, max(request.width - 2 * margin, 1), max(request.height, 1))
    if request.zoomed:
        return {request.zoomed: body}
    places = {spec.id: getattr(spec, name) for spec in PANELS}
    return _stack(request, body, _bands(request, places))


def wants(request: Request) -> dict[str, Want]:
    """What each panel asks for."""
    return {spec.id: spec.rows(request) for spec in PANELS}


def heights(items: Sequence[Want], rows: int) -> list[int]:
    """Rows of each item: its least, then towards enough in turn, the rest to those that stretch."""
    result = [item.least for item in items]
    while sum(result) > rows and any(h > 1 for h in result):
        result[max(range(len(result)), key=lambda i: result[i])] -= 1
    rows_left = _grow(items, result, rows - sum(result))
    total = sum(item.stretch for item in items)
    for index, item in enumerate(items):
        if item.stretch:
            # the last of them has all that is left of the total
            share = rows_left * item.stretch // total
            result[index] += share
            rows_left -= share
            total -= item.stretch
    if rows_left > 0 and result:
        result[-1] += rows_left
    return result


def _grow(items: Sequence[Want], result: list[int], rows_left: int) -> int:
    """Give items that have not enough a row each in turn; the rows that nobody needs."""
    growing = True
    while rows_left > 0 and growing:
        growing = False
        for index, item in enumerate(items):
            if rows_left > 0 and result[index] < item.enough:
                result[index] += 1
                rows_left -= 1
                growing = True
    return rows_left


def _stack(request: Request, box: Box, bands: Sequence[Sequence[str]]) -> dict[str, Box]:
    """Bands of panels from top to bottom, the panels of a band side by side."""
    request_rows = wants(request)
    shown = [[p for p in band if p not in request.hidden] for band in bands]
    shown = [band for band in shown if band]
    rows = [_together([request_rows[p] for p in band]) for band in shown]
    result: dict[str, Box] = {}
    y, name = box.y, layout_of(request)
    gap = GAP if name == "compact" else 0
    for band, height in zip(shown, heights(rows, box.height), strict=True):
        x = box.x
        widths = _widths(band, name, box.width - gap * (len(band) - 1))
        for panel, width in zip(band, widths, strict=True):
            result[panel] = Box(x, y, width, height)
            x += width + gap
        y += height
    return result


def _widths(band: Sequence[str], layout: str, cells: int) -> list[int]:
    """Cells of each panel of a band: two share as the layout says, more share alike."""
    if len(band) == 2 and layout in SHARES:
        first = cells * SHARES[layout][0] // 100
        return [first, cells - first]
    cell_width = [cells // len(band)] * len(band)
    cell_width[-1] += cells - sum(cell_width)
    return cell_width


def _together(items: Sequence[Want]) -> Want:
    return Want(
        max(i.least for i in items), max(i.enough for i in items), max(i.stretch for i in items)
    )


def _bands(request: Request, places: dict[str, tuple[int, int]]) -> list[list[str]]:
    """Panels by band and place; of several at one place that switched to, else the first."""
    shown: dict[tuple[int, int], str] = {}
    for id, position in places.items():
        if position not in shown or id == request.switched:
            shown[position] = id
    bands = sorted({band for band, _ in shown})
    return [
        [shown[position] for position in sorted(shown) if position[0] == band] for band in bands
    ]
