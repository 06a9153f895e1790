"""The stacked chart of a step over time: newest at the right, names inside, gaps of stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gputop import palette
from gputop.feed.snapshot import Snapshot, Timeline
from gputop.render import numbers
from gputop.render.bars import stacked_columns
from gputop.render.rows import Row, left, right, row_width
from gputop_agent.wire import PHASES
from gputop_analysis.step_parts import CALLED, WAIT, parts_of

AXIS = 8
TAG = 18
"""Cells of a name, which goes on where the area ends."""
TAGS_FROM = 44
"""Cells of a chart from which on it has names."""
WIDEST = 4
"""Cells of a bin at most."""
LEAST_SHARE = 0.015
"""Of the step, from which on a part has a name."""
HALF_FROM, FIFTHS_FROM = 5, 16
"""Rows of a chart from which on its scale has a tick at the half, or at the fifths."""
CUT_AT = 3.0
"""Medians of the step time at which the scale ends at the latest."""


class PartLook(NamedTuple):
    """Style and letter of a part."""

    style: str
    letter: str


PARTS: dict[str, PartLook] = {}
"""The parts from the bottom up: the phases in their order, waiting after backward."""
for _phase in palette.PHASES:
    if _phase.name != CALLED:
        PARTS[_phase.name] = PartLook(_phase.name, _phase.letter)
    if _phase.name == "backward":
        PARTS[WAIT] = PartLook(WAIT, "w")

Columns = list[tuple[float, ...]]


def parted(line: Timeline) -> Columns:
    """Milliseconds by part and bin: waiting is taken out of backward, the excess out of other, and
    joined to the collectives called from Python.
    """
    columns: Columns = []
    for phases, hidden_ms in zip(line.phases_ms, line.wait_ms, strict=True):
        parts: dict[str, float] = dict(zip(PHASES, phases, strict=True))
        parts[WAIT] = parts.pop(CALLED)
        if hidden_ms > 0 and phases[0] == phases[0]:
            inside = min(hidden_ms, parts["backward"])
            beyond = min(hidden_ms - inside, parts["other"])
            parts["backward"] -= inside
            parts["other"] -= beyond
            parts[WAIT] += inside + beyond
        columns.append(tuple(parts[name] for name in PARTS))
    return columns


def in_cells(line: Timeline, columns: Columns, cells: int) -> tuple[Columns, float]:
    """One column a cell, the newest last, and the seconds of a cell: several bins joined, or one
    drawn wider; the oldest are left out where that fills the cells.
    """
    begun = next((x for x, column in enumerate(columns) if column[0] == column[0]), 0)
    columns, steps = columns[begun:], line.steps[begun:]
    bin_s = line.bin_s
    joined = max(round(len(columns) / cells), 1)
    if all(column[0] != column[0] for column in columns[-cells * joined :]):
        joined = max(math.ceil(len(columns) / cells), 1)  # the last steps before it stood
    if joined > 1:
        lead = -len(columns) % joined
        weighted = [(None, 0.0)] * lead + list(zip(columns, steps, strict=True))
        columns = [_joined(weighted[i : i + joined]) for i in range(0, len(weighted), joined)]
        bin_s *= joined
    columns = columns[-cells:]
    count = len(columns)
    filled = min(cells, WIDEST * count)
    drawn = [columns[x * count // filled] for x in range(filled)]
    return drawn, bin_s * count / max(filled, 1)


def _joined(bins: Sequence[tuple[tuple[float, ...] | None, float]]) -> tuple[float, ...]:
    """Mean of some bins, each counted by its steps; NaN where none has any."""
    filled = [(column, n) for column, n in bins if column is not None and column[0] == column[0]]
    total = sum(n for _, n in filled)
    if not filled or total <= 0:
        return (math.nan,) * len(PARTS)
    parts = zip(*(column for column, _ in filled), strict=True)
    weights = [n / total for _, n in filled]
    return tuple(sum(v * w for v, w in zip(part, weights, strict=True)) for part in parts)


def chart(snapshot: Snapshot, width: int, height: int, mono: bool = False) -> list[Row]:
    """The area with its scale at the left and the time below, in ``width`` x ``height`` cells."""
    line = _without_unfinished(snapshot)
    tagged = width - AXIS >= TAGS_FROM
    cells, rows = max(width - AXIS - TAG * tagged, 1), max(height - 1, 1)
    columns, cell_s = in_cells(line, parted(line), cells)
    high = _typical_high(line) or sum(means_of(snapshot).values())
    top = numbers.nice_ceiling(high * 1.08)
    looks = list(PARTS.values())
    drawn = [_with_zeros(column) for column in columns]
    styles, letters = [look.style for look in looks], [look.letter for look in looks]
    area = stacked_columns(drawn, styles, letters, rows, top, mono=mono)
    lead = cells - len(columns)
    stood = _stood(snapshot, columns)
    result: list[Row] = []
    for y, row in enumerate(area):
        cut = _with_gaps(row, columns)
        if y == rows // 2 and stood:
            cut = _written_over(cut, stood)
        label: Row = [(right(_tick(y, rows, top), AXIS - 1) + " ", "muted")]
        result.append([*label, (" " * lead, ""), *cut])
    if tagged:
        result = _tagged(snapshot, result, top, mono)
    return [*result, _time_axis(snapshot, cells, cell_s, len(columns))]


def _with_zeros(column: tuple[float, ...]) -> tuple[float, ...]:
    """A column with 0 for NaN, which nothing is drawn of."""
    return tuple(value if value == value else 0.0 for value in column)


def _with_gaps(row: Row, columns: Columns) -> Row:
    """Dots where the run stood."""
    if all(column[0] == column[0] for column in columns):
        return row
    flat = [(char, style) for text, style in row for char in text]
    result: Row = []
    for (char, style), column in zip(flat, columns, strict=True):
        cell = (char, style) if column[0] == column[0] else ("┊", "track")
        if result and result[-1][1] == cell[1]:
            result[-1] = (result[-1][0] + cell[0], cell[1])
        else:
            result.append(cell)
    return result


def _without_unfinished(snapshot: Snapshot) -> Timeline:
    """The timeline up to the newest step: a step that takes no longer than others is no stand."""
    line, run = snapshot.timeline, snapshot.summary
    if run.state != "running" or run.silent_s:
        return line
    count = len(line.steps)
    while count and line.phases_ms[count - 1][0] != line.phases_ms[count - 1][0]:
        count -= 1
    return line._replace(
        phases_ms=line.phases_ms[:count], wait_ms=line.wait_ms[:count], steps=line.steps[:count]
    )


def _stood(snapshot: Snapshot, columns: Columns) -> str:
    """Why there is nothing to see where the run stood all the time that is shown."""
    silent_s = snapshot.summary.silent_s
    if not silent_s or any(column[0] == column[0] for column in columns):
        return ""
    return f" no step for {numbers.clock(silent_s)} "


def _written_over(row: Row, text: str) -> Row:
    """The row with the text in its middle, where it fits."""
    cells = row_width(row)
    if len(text) > cells:
        return row
    start = (cells - len(text)) // 2
    (glyph, style), *_ = row
    after = cells - start - len(text)
    return [(glyph[0] * start, style), (text, "muted"), (glyph[0] * after, style)]


def _tick(y: int, height: int, top: float) -> str:
    """The time that stands beside a row: the top's, the bottom's, and between them that of a half,
    of fifths where there is room; such a row has it within it or at its upper edge.
    """
    if y == 0:
        return numbers.duration_ms(top)
    if y == height - 1 and height >= 4:
        return "0"
    parts = 5 if height >= FIFTHS_FROM else 2
    for part in range(1, parts):
        if height >= HALF_FROM and y == height * part // parts:
            return numbers.duration_ms(top * (parts - part) / parts)
    return ""


def _typical_high(line: Timeline) -> float:
    """The 95th percentile of the step times in ms, and at most three medians: a slow step is one
    step however wide it is, and what is cut off has a mark. 0 where the run stood all the time.
    """
    timed = [pair for pair in zip(line.step_ms, line.steps, strict=True) if pair[0] == pair[0]]
    ordered = sorted(timed)
    if not ordered:
        return 0.0
    return min(_percentile(ordered, 0.95), CUT_AT * _percentile(ordered, 0.5))


def _percentile(ordered: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which ``share`` of the weight lies, of sorted pairs of value and weight."""
    remaining = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        remaining -= weight
        if remaining <= 0:
            return value
    return ordered[-1][0]


# ---- names


def _tagged(snapshot: Snapshot, rows: list[Row], top: float, mono: bool) -> list[Row]:
    """Names of the parts at the area's right end, each as near to its part as others let it; what
    has no name of its own is the last label: they add up to the step.
    """
    means, height = means_of(snapshot), len(rows)
    digits = max(numbers.digits_for(max(means.values(), default=1.0)) - 1, 0)
    named, rest = _named(means, height, digits)
    middles = [_middle(means, name) for name in named] + [sum(means.values())] * bool(rest)
    places = _places([middle / top * height for middle in middles], height)
    tags = [_ground(means, top, (height - y - 0.5) / height) for y in range(height)]
    for name, position in zip(named, places, strict=False):
        words = f"{PARTS[name].letter} {name}" if mono else name
        figure = numbers.ms_column(means[name], digits)
        tags[height - 1 - position] = (_tag(words, figure), f"on-phase/{PARTS[name].style}")
    if rest:
        figure = numbers.ms_column(sum(means[name] for name in rest), digits)
        tags[height - 1 - places[-1]] = (_tag(_together(rest, len(figure)), figure), "text")
    return [[*row, tag] for row, tag in zip(rows, tags, strict=True)]


def _named(means: dict[str, float], height: int, digits: int) -> tuple[list[str], list[str]]:
    """Parts with a label each, and those that share the last one, which counts as a row too."""
    total = sum(means.values())
    timed = [name for name in PARTS if means.get(name, 0.0) > 0]
    named = [name for name in timed if means[name] > LEAST_SHARE * total]
    while True:
        rest = [name for name in timed if name not in named]
        if sum(means[name] for name in rest) < 0.5 * 10.0**-digits:
            rest = []  # it would say 0
        if len(rest) == 1 and len(timed) <= height:
            return timed, []
        if len(named) + bool(rest) <= height or not named:
            return named, rest
        named.remove(min(named, key=lambda name: means[name]))


def _together(names: list[str], figure_cells: int) -> str:
    """``+ eval, other``, or how many they are where the names have no room."""
    words = f"+ {', '.join(names)}"
    return words if len(words) <= TAG - figure_cells - 3 else f"+ {len(names)} more"


def _tag(words: str, figure: str) -> str:
    return f" {left(words, TAG - len(figure) - 3)} {figure} "


def _ground(means: dict[str, float], top: float, share: float) -> tuple[str, str]:
    """What goes on of the area at a share of the height where no name stands."""
    below = 0.0
    for part in PARTS:
        below += means.get(part, 0.0)
        if share * top < below:
            return (" " * TAG, f"on-phase/{PARTS[part].style}")
    return (" " * TAG, "")


def means_of(snapshot: Snapshot) -> dict[str, float]:
    """Milliseconds a step of each part over the window of the figures."""
    return {part.name: part.mean_ms for part in parts_of(snapshot.summary)}


def _middle(means: dict[str, float], name: str) -> float:
    below = 0.0
    for part in PARTS:
        if part == name:
            return below + means[part] / 2
        below += means.get(part, 0.0)
    return below


def _places(middles: list[float], height: int) -> list[int]:
    """A row from the bottom for each, in order, none twice, as near to its middle as can be."""
    places: list[int] = []
    for index, middle in enumerate(middles):
        lowest = places[-1] + 1 if places else 0
        highest = height - (len(middles) - index)
        places.append(min(max(int(middle), lowest), highest))
    return places


def _time_axis(snapshot: Snapshot, cells: int, cell_s: float, filled: int) -> Row:
    """``−60 s     −30 s     now``; of a run that has ended its end."""
    last = "end" if snapshot.ended else "now"
    line = [" "] * cells
    if filled >= 24:
        places = [cells - filled, cells - filled // 2]
    else:
        places = [cells - filled]
    for x in places:
        text = _ago(cell_s * (cells - x))
        if x + len(text) + len(last) + 2 <= cells:
            line[x : x + len(text)] = text
    line[cells - len(last) :] = last
    return [(" " * AXIS + "".join(line)[:cells], "muted")]


def _ago(seconds: float) -> str:
    if seconds >= 90:
        if seconds % 60 < 6:
            return f"−{seconds / 60:.0f} min"
        return f"−{seconds / 60:.1f} min"
    return f"−{seconds:.0f} s" if seconds >= 10 else f"−{seconds:.1f} s"
