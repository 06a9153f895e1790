"""The checklist of a start: what is behind, what is under way, and the time that each took."""

from __future__ import annotations

from gputop.feed.starting import Starting
from gputop.render.bars import bar
from gputop.render.rows import Row, left, right, shorten
from gputop_analysis.startup import OTHER, TELLING, StartupPart, split
from gputop_analysis.text import duration

NAME, WIDER_NAME, FIGURE = 26, 36, 9
"""Cells of a name, of one where there is room for a bar too, and of a time."""
REACHED = "{} of {} processes"
"""By how many a milestone has been reached, where there is room for the words."""
WITH_BAR = 60
"""Cells of a panel from which on each line has a bar."""
ROAD = ("python", "import torch", "model", "first batch", "first forward", "first step")
"""What every training comes by before its first step is done, in this order."""
UNTOLD = "python, imports"
"""What is under way until a process makes its first parameter: it says nothing before."""
_BEHIND, _UNDER_WAY, _AHEAD = "✓", "○", "·"


def checklist(start: Starting, now_ns: int, width: int, height: int) -> list[Row]:
    """Milestones, one a row: behind, under way, to come; the first ones give way for the last."""
    parts, whole_ns = _parts(start, now_ns)
    telling = [part for part in parts if part.name != OTHER or part.ns >= TELLING * whole_ns]
    rows = [_line(part, whole_ns, start, width) for part in telling][-height:]
    ahead: list[Row] = [[(f"{_AHEAD} {name}", "muted")] for name in _to_come(start)]
    return [*rows, *ahead[: height - len(rows)]]


def under_way(start: Starting, now_ns: int) -> tuple[str, float]:
    """What the process that has come furthest is at, and the seconds that it has taken so far."""
    parts, _ = _parts(start, now_ns)
    part = next((part for part in parts if part.under_way), parts[-1])
    return part.words, part.ns / 1e9


def _parts(start: Starting, now_ns: int) -> tuple[list[StartupPart], int]:
    """The parts of the time so far, the one without a name named, and all of it in nanoseconds."""
    until_ns = max(now_ns, start.began_ns + 1)
    parts = split(start.events, start.began_ns, until_ns)
    named: list[StartupPart] = []
    last = ""
    for part in parts:
        if part.name == OTHER and not part.before:
            part = part._replace(name=f"code after {last}" if last else UNTOLD)
        else:
            last = part.name
        named.append(part)
    return named, until_ns - start.began_ns


def _to_come(start: Starting) -> list[str]:
    """What every training comes by and this one has not; what it passed unseen does not come."""
    seen = {event["name"] for event in start.events} | {"import torch"}
    last = max(index for index, name in enumerate(ROAD) if name in seen)
    return list(ROAD[last + 1 :])


def _line(part: StartupPart, whole_ns: int, start: Starting, width: int) -> Row:
    """Mark, name, time, how many processes have come so far, and a bar where there is room."""
    many = start.processes
    narrow = width < 2 + NAME + FIGURE + 2 + len(REACHED.format(many, many))
    reached_words = "{} of {}" if narrow else REACHED
    reached_cells = len(f"  {reached_words.format(many, many)}  ") if many > 1 else 2
    cells = min(WIDER_NAME if width >= WITH_BAR else NAME, width - FIGURE - 2 - reached_cells)
    is_milestone = any(event["name"] == part.name for event in start.events)
    style = "text" if is_milestone else "muted"
    if part.under_way:
        mark = (f"{_UNDER_WAY} ", "high")
    else:
        mark = (f"{_BEHIND} ", "good")
    row: Row = [mark, (left(shorten(part.words, cells), cells), style)]
    row.append((right(duration(part.ns / 1e9), FIGURE), style))
    reached = ""
    if is_milestone and many > 1:
        reached = "  " + reached_words.format(start.reached.get(part.name, 0), many)
    room = width - 2 - cells - FIGURE - reached_cells
    if room < 8:
        return [*row, (reached, "muted")]
    return [*row, (left(reached, reached_cells), "muted"), *bar(part.ns / whole_ns, room, "meter")]
