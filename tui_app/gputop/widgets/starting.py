"""The checklist of a start: what is behind, what is under way, and the time that each took."""

from __future__ import annotations

from gputop.feed.starting import Starting
from gputop.render.bars import bar
from gputop.render.rows import Row, left, right, say, shorten
from gputop_analysis.startup import OTHER, TELLING, Part, split
from gputop_analysis.text import duration

NAME, FIGURE = 26, 9
"""Cells of a name and of a time."""
WITH_BAR = 60
"""Cells of a panel from which on each line has a bar."""
_BEHIND, _UNDER_WAY = "✓", "◌"


def checklist(start: Starting, now_ns: int, width: int, height: int) -> list[Row]:
    """The milestones so far, one a row, the newest last; of more than fit the first are left
    out.
    """
    until_ns = max(now_ns, start.began_ns + 1)
    if not start.events:
        since = duration((until_ns - start.began_ns) / 1e9)
        return say(f"The command runs for {since}: nothing of torch's is seen yet.", width)
    parts = split(start.events, start.began_ns, until_ns)
    whole = until_ns - start.began_ns
    telling = [one for one in parts if one.name != OTHER or one.ns >= TELLING * whole]
    rows = [_line(one, whole, start, width) for one in telling]
    if telling and not telling[-1].under_way:
        rows.append([(f"{_UNDER_WAY} ", "info"), ("on the way to the first step", "muted")])
    return rows[-height:]


def _line(part: Part, whole_ns: int, start: Starting, width: int) -> Row:
    going = part.under_way
    name = part.words
    if part.name == OTHER and not part.before:
        name = "now: code that is not told apart"
    name_cells = min(NAME if width < WITH_BAR else 2 * NAME, width - FIGURE - 2)
    style = "text" if part.name != OTHER else "muted"
    mark = (f"{_UNDER_WAY} ", "high") if going else (f"{_BEHIND} ", "good")
    row: Row = [mark, (left(shorten(name, name_cells), name_cells), style)]
    row.append((right(duration(part.ns / 1e9), FIGURE), style))
    others = f"  {start.reached.get(part.name, 0)} of {start.processes}"
    if start.processes > 1 and part.name != OTHER:
        row.append((others, "muted"))
    room = width - 2 - name_cells - FIGURE - 16
    if width >= WITH_BAR and room >= 8:
        pad = 14 if not (start.processes > 1 and part.name != OTHER) else 14 - len(others)
        row.append((" " * max(pad, 1), ""))
        row += bar(part.ns / whole_ns, room, "meter")
    return row
