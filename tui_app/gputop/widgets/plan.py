"""Where the panels lie, as a pure function of the size: every layout is designed, none is left to chance.

Compact (80x24) shows the breakdown, the findings and one switchable panel; normal (120x40) shows all in bands; wide
(200x50) shows two columns. A zoomed panel has the body for itself; a hidden one leaves its room to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PANELS = ("breakdown", "memory", "ranks", "meters", "findings", "output", "loss")
SWITCHED = ("memory", "ranks", "meters", "output", "loss")
"""Panels that share one place in the compact layout."""
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


class Want(NamedTuple):
    """Rows that a panel asks for, title included."""

    least: int
    enough: int
    """More than this is of no use, except to panels that ``stretch``."""
    stretch: int = 0


class Request(NamedTuple):
    """All that the layout depends on. Only structure enters (how many ranks), never a number that flickers."""

    width: int
    height: int
    ranks: int = 1
    gpus: int = 0
    hosts: int = 1
    findings: int = 0
    begun: bool = True
    """A step has ended. Until then there is nothing to break down, and the command's output has the room."""
    hidden: frozenset[str] = frozenset()
    zoomed: str | None = None
    switched: str = "output"


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
    memory = 2 + (request.gpus or request.ranks + 2)
    meters = 1 + request.gpus + 3 * min(request.hosts, 4)
    ranks = 8 if request.ranks <= 1 else 2 + request.ranks
    return {
        "breakdown": Want(6, 12, 1) if request.begun else Want(3, 3),
        "memory": Want(3, max(4, memory)),
        "ranks": Want(4, max(6, ranks)),
        "meters": Want(3, max(4, meters)),
        "findings": Want(3, 1 + max(2, request.findings)),
        "output": Want(4, 12, 2),
        "loss": Want(4, 10, 1),
    }


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
    return Want(max(i.least for i in items), max(i.enough for i in items), max(i.stretch for i in items))


def _compact(request: Request, body: Box) -> dict[str, Box]:
    return _stack(request, body, [["breakdown"], ["findings"], [request.switched]])


def _normal(request: Request, body: Box) -> dict[str, Box]:
    third = "loss" if request.switched == "loss" else "meters"
    return _stack(request, body, [["breakdown"], ["findings"], ["memory", "ranks"], [third, "output"]])


def _wide(request: Request, body: Box) -> dict[str, Box]:
    first = ["breakdown", "ranks", "output"]
    second = ["findings", "memory", "meters", "loss"]
    if all(panel in request.hidden for panel in second):
        return _stack(request, body, [[p] for p in first])
    if all(panel in request.hidden for panel in first):
        return _stack(request, body, [[p] for p in second])
    width = (body.width - GAP) * 57 // 100
    left = Box(body.x, body.y, width, body.height)
    right = Box(body.x + width + GAP, body.y, body.width - width - GAP, body.height)
    return {**_stack(request, left, [[p] for p in first]), **_stack(request, right, [[p] for p in second])}
