"""Rounded frames around rows, with a title and a note in the upper edge."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.render.rows import Row, fill, row_width, shorten

RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
SIDES = 4
"""Cells that a frame takes of the width, and ``EDGES`` rows of the height."""
EDGES = 2


def framed(
    title: str,
    content: Sequence[Row],
    width: int,
    height: int,
    *,
    number: str = "",
    note: Row | None = None,
    rule: str = "rule",
) -> list[Row]:
    """``height`` rows of ``width`` cells around at most ``height - 2`` rows of content."""
    rows = [edge(title, width, number=number, note=note or [], rule=rule)]
    for index in range(height - EDGES):
        inside = content[index] if index < len(content) else []
        rows.append([("│ ", rule), *fill(inside, width - SIDES), (" │", rule)])
    if height > 1:
        rows.append([("╰" + "─" * (width - 2) + "╯", rule)])
    return rows


def edge(title: str, width: int, *, number: str = "", note: Row, rule: str = "rule") -> Row:
    """``╭─¹ Title ──── note ─╮``; the note stays away where it does not fit."""
    lit = rule != "rule"
    start: Row = [("╭─", rule)]
    if number:
        start.append((number.translate(RAISED), rule if lit else "muted"))
    room = width - row_width(start) - 5
    start.append((f" {shorten(title, room)} ", f"bold {rule}" if lit else "bold text"))
    if not 0 < row_width(note) <= width - row_width(start) - 6:
        note = []
    end: Row = [(" ", ""), *note, (" ", "")] if note else []
    line = max(width - row_width(start) - row_width(end) - 2, 0)
    return [*start, ("─" * line, rule), *end, ("─╮", rule)]
