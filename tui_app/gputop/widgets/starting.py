"""The checklist of a start: what is behind, what is under way, and the time that each took."""

from __future__ import annotations

from gputop.feed.starting import Starting
from gputop.render.bars import bar
from gputop.render.rows import Row, left, right, say, shorten
from gputop_analysis.startup import OTHER, TELLING, Part, split
from gputop_analysis.text import duration

NAME, FIGURE, REACHED = 26, 9, 16
"""Cells of a name, of a time and of ``7 of 8``."""
WITH_BAR = 60
"""Cells of a panel from which on each line has a bar."""
_BEHIND, _UNDER_WAY = "✓", "○"


def checklist(start: Starting, now_ns: int, width: int, height: int) -> list[Row]:
    """Milestones so far, one a row, the newest last; of more than fit the first are left out."""
    until_ns = max(now_ns, start.began_ns + 1)
    if not start.events:
        since = duration((until_ns - start.began_ns) / 1e9)
        return say(f"The command runs for {since}: nothing of torch's is seen yet.", width)
    parts = split(start.events, start.began_ns, until_ns)
    whole_ns = until_ns - start.began_ns
    telling = [part for part in parts if part.name != OTHER or part.ns >= TELLING * whole_ns]
    rows: list[Row] = []
    last = ""
    for part in telling:
        if part.name == OTHER and not part.before:
            rest_part = part._replace(name=f"code after {last}" if last else "code")
            rows.append(_line(rest_part, whole_ns, start, width))
            continue
        rows.append(_line(part, whole_ns, start, width))
        last = part.name
    if telling and not telling[-1].under_way:
        rows.append([(f"{_UNDER_WAY} ", "info"), ("on the way to the first step", "muted")])
    return rows[-height:]


def _line(part: Part, whole_ns: int, start: Starting, width: int) -> Row:
    """Mark, name, time, how many processes have come so far, and a bar where there is room."""
    cells = min(NAME if width < WITH_BAR else 2 * NAME, width - FIGURE - 2)
    is_milestone = any(event["name"] == part.name for event in start.events)
    style = "text" if is_milestone else "muted"
    if part.under_way:
        mark = (f"{_UNDER_WAY} ", "high")
    else:
        mark = (f"{_BEHIND} ", "good")
    row: Row = [mark, (left(shorten(part.words, cells), cells), style)]
    row.append((right(duration(part.ns / 1e9), FIGURE), style))
    reached = ""
    if is_milestone and start.processes > 1:
        reached = f"  {start.reached.get(part.name, 0)} of {start.processes}"
    room = width - 2 - cells - FIGURE - REACHED
    if room < 8:
        return [*row, (reached, "muted")]
    return [*row, (left(reached, REACHED), "muted"), *bar(part.ns / whole_ns, room, "meter")]
