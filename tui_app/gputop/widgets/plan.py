"""Where the panels lie, as a pure function of the size: every layout is designed, none is left to chance.

Compact (80x24) shows the breakdown, the findings and one switchable panel; normal (120x40) shows all in bands; wide
(200x50) shows two columns. A zoomed panel has the body for itself; a hidden one leaves its room to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gputop.panels import PANELS, Request, Want

GAP = 2
WIDE = 160
NORMAL_WIDTH = 100
NORMAL_HEIGHT = 32


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


def plan(request: Request) -> dict[str, Box]:
    """The box of every visible panel; panels that are not in it are not shown."""
    body = Box(1, 0, max(request.width - 2, 1), max(request.height, 1))
    if request.zoomed:
        return {request.zoomed: body}
    name = layout_name(request.width, request.height)
    return {"compact": _compact, "normal": _normal, "wide": _wide}[name](request, body)


def wants(request: Request) -> dict[str, Want]:
    """What each panel asks for."""
    return {spec.id: spec.rows(request) for spec in PANELS}


def heights(items: Sequence[Want], rows: int) -> list[int]:
    """Rows for each item: its least, then towards enough in turn, then what is left to those that stretch."""
    result = [item.least for item in items]
    while sum(result) > rows and any(h > 1 for h in result):
        result[max(range(len(result)), key=lambda i: result[i])] -= 1
    left = rows - sum(result)
    growing = True
    while left > 0 and growing:
        growing = False
        for index, item in enumerate(items):
            if left > 0 and result[index] < item.enough:
                result[index] += 1
                left -= 1
                growing = True
    stretchers = [i for i, item in enumerate(items) if item.stretch]
    total = sum(items[i].stretch for i in stretchers)
    for order, index in enumerate(stretchers):
        share = left * items[index].stretch // total if order < len(stretchers) - 1 else left
        result[index] += share
        left -= share
        total -= items[index].stretch
    if left > 0 and result:
        result[-1] += left
    return result


def _stack(request: Request, box: Box, bands: Sequence[Sequence[str]]) -> dict[str, Box]:
    """Bands of panels from top to bottom, the panels of a band side by side."""
    asked = wants(request)
    shown = [[p for p in band if p not in request.hidden] for band in bands]
    shown = [band for band in shown if band]
    rows = [_together([asked[p] for p in band]) for band in shown]
    result: dict[str, Box] = {}
    y = box.y
    gap = 1 if layout_name(request.width, request.height) != "compact" else 0
    sizes = heights(rows, box.height - gap * (len(shown) - 1))
    for band, height in zip(shown, sizes, strict=True):
        x, cells = box.x, box.width - GAP * (len(band) - 1)
        for index, panel in enumerate(band):
            width = cells // (len(band) - index)
            cells -= width
            result[panel] = Box(x, y, width, height)
            x += width + GAP
        y += height + gap
    return result


def _together(items: Sequence[Want]) -> Want:
    return Want(
        max(i.least for i in items), max(i.enough for i in items), max(i.stretch for i in items)
    )


def _compact(request: Request, body: Box) -> dict[str, Box]:
    return _stack(request, body, _bands(request, {spec.id: spec.compact for spec in PANELS}))


def _normal(request: Request, body: Box) -> dict[str, Box]:
    return _stack(request, body, _bands(request, {spec.id: spec.normal for spec in PANELS}))


def _wide(request: Request, body: Box) -> dict[str, Box]:
    first, second = _bands(request, {spec.id: spec.wide for spec in PANELS})
    if all(panel in request.hidden for panel in second):
        return _stack(request, body, [[panel] for panel in first])
    if all(panel in request.hidden for panel in first):
        return _stack(request, body, [[panel] for panel in second])
    width = (body.width - GAP) * 57 // 100
    left = Box(body.x, body.y, width, body.height)
    right = Box(body.x + width + GAP, body.y, body.width - width - GAP, body.height)
    columns = (left, first), (right, second)
    return {
        id: box
        for room, ids in columns
        for id, box in _stack(request, room, [[id] for id in ids]).items()
    }


def _bands(request: Request, places: dict[str, tuple[int, int]]) -> list[list[str]]:
    """Panels by band and place; where several have one place, the one that was switched to, else the first."""
    shown: dict[tuple[int, int], str] = {}
    for id, place in places.items():
        if place not in shown or id == request.switched:
            shown[place] = id
    bands = sorted({band for band, _ in shown})
    return [[shown[place] for place in sorted(shown) if place[0] == band] for band in bands]
