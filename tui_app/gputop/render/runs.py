"""The rows of the screen of runs: a line a run, and all that is known of the chosen one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gputop import palette
from gputop.feed.runs import FOREIGN, RunRow, state_of
from gputop.render import numbers
from gputop.render.rows import (
    Row,
    clip,
    fill,
    left,
    right,
    row_width,
    shorten,
    shorten_middle,
    text_width,
    wrap,
)

WHEN, STATE, RANKS, STEPS, STEP_MS = 13, 9, 5, 8, 9
NAME = 34
NAME_FROM = 140
"""Columns from which on a run's name stands beside its command."""
STATE_FROM = 96
"""Columns from which on the state and the ranks have their own."""
COMMAND_FROM = 70
"""Columns from which on a verdict stands beside the command; with fewer it has the command's."""
_ENDED = re.compile(r"^ended: [\d,]+ steps?, (exit 0; )?")
EMPTY = (
    "No runs yet. Put gputop before the command that trains:",
    "",
    "  gputop run python train.py",
    "",
    "It runs unchanged, and stands here from its start on. `gputop demo` shows a recorded one.",
)


def table(
    rows: Sequence[RunRow],
    width: int,
    *,
    first: int,
    height: int,
    cursor: int | None,
    marks: Mapping[Path, str],
    now_ns: int,
) -> list[Row]:
    """A heading, then the rows from ``first`` on that ``height`` has room for."""
    lines: list[Row] = [_heading(width)]
    for index in range(first, min(first + height - 1, len(rows))):
        row = rows[index]
        line = _line(row, width, marks.get(row.path, ""), now_ns)
        if index == cursor:
            line = [(text, f"{style or 'text'}/cursor") for text, style in fill(line, width)]
        lines.append(line)
    return lines


def _heading(width: int) -> Row:
    names = left("  when", WHEN + 2) + left("command", _command_cells(width))
    if width >= NAME_FROM:
        names += left("run", NAME)
    if width >= STATE_FROM:
        names += left("state", STATE)
    names += right("ranks", RANKS) * (width >= STATE_FROM)
    names += right("steps", STEPS) + right("p50 ms", STEP_MS)
    return [(names, "muted")] + ([("   verdict", "muted")] if width >= COMMAND_FROM else [])


def _command_cells(width: int) -> int:
    """Cells of the command: a part of what the figures leave."""
    used = 2 + WHEN + STEPS + STEP_MS
    used += (STATE + RANKS) * (width >= STATE_FROM) + NAME * (width >= NAME_FROM)
    if width < COMMAND_FROM:
        return max(width - used, 8)
    if width < STATE_FROM:
        return (width - used) // 2
    return min((width - used) * 2 // 5, 44)


def _line(row: RunRow, width: int, mark: str, now_ns: int) -> Row:
    run, cells = row.run, _command_cells(width)
    tone = "text" if row.readable else "muted"
    if run.state == FOREIGN:
        when = ""
    else:
        when = numbers.ago((now_ns - run.started_ns) / 1e9)
    line: Row = [(left(mark, 2), "bold accent"), (left(when, WHEN), "muted")]
    line.append((left(_called_in(row, cells - 1), cells), tone))
    if width >= NAME_FROM:
        line.append((left(shorten_middle(run.name, NAME - 2), NAME), "muted"))
    if width >= STATE_FROM:
        line.append((left(state_of(run), STATE), _state_style(row)))
        line.append((right(_count(run.ranks), RANKS), "muted"))
    line.append((right(_count(run.steps), STEPS), tone))
    line.append((right(_step_ms(row), STEP_MS), tone))
    room = width - row_width(line) - 3
    if width >= COMMAND_FROM:
        line += [("   ", ""), *verdict(row, room)]
    return clip(line, width)


def _called_in(row: RunRow, width: int) -> str:
    """In at most ``width`` cells: of a command the end tells two runs apart, and is kept."""
    name = _named(row)
    if text_width(name) > width // 2:
        return shorten_middle(called(row), width)
    return name + shorten_middle(called(row).removeprefix(name), width - text_width(name))


def _named(row: RunRow) -> str:
    return f"[{row.run.given_name}] " if row.run.given_name else ""


def called(row: RunRow) -> str:
    """The command without its interpreter, after a given name; else the directory's name."""
    words = list(row.run.command)
    if len(words) > 1 and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if words and words[0].endswith(".py"):
        words[0] = Path(words[0]).name
    return _named(row) + (" ".join(words) or row.run.name)


def verdict(row: RunRow, width: int) -> Row:
    """Mark and headline in at most ``width`` cells."""
    figures = row.figures
    if figures is None:
        return [("…", "muted")]
    if figures.health is None:
        word = "✖ " if row.run.state == "damaged" else "· "
        return [(shorten(word + figures.headline, width), "muted")]
    mark = palette.HEALTH[figures.health]
    return [(f"{mark.glyph} ", mark.style), (shorten(plain_headline(row), width - 2), "text")]


def plain_headline(row: RunRow) -> str:
    """The verdict without the steps and the exit code, which have columns of their own."""
    assert row.figures is not None
    headline = _ENDED.sub("", row.figures.headline)
    return f"damaged; {headline}" if row.run.damaged else headline


def _count(value: int) -> str:
    return f"{value:,}" if value else numbers.NONE


def _step_ms(row: RunRow) -> str:
    if row.figures is None and row.run.steps:
        return "…"
    return numbers.ms(_known_ms(row))


def _known_ms(row: RunRow) -> float | None:
    return row.figures.step_ms if row.figures is not None else None


def _state_style(row: RunRow) -> str:
    if row.run.state == "running":
        return "good"
    if row.run.state in ("damaged", "lost") or row.run.exit_code:
        return "high"
    return "muted"


def facts(row: RunRow, width: int) -> list[Row]:
    """All that is known of one run: verdict and fix in full, command, directory."""
    lines: list[Row] = []
    figures = row.figures
    if figures is not None:
        if figures.health:
            style = palette.HEALTH[figures.health].style
        else:
            style = "high"
        if figures.health:
            glyph = palette.HEALTH[figures.health].glyph
        else:
            glyph = "✖"
        lines += _field(f"{glyph} verdict", figures.headline, width, style)
        if figures.fix:
            lines += _field("fix", figures.fix, width)
    if row.run.command:
        lines += _field("command", " ".join(row.run.command), width)
    state = state_of(row.run)
    lines += _field("run", f"{row.run.name}, {state}" if row.run.command else state, width)
    lines += _field("directory", str(row.path), width)
    return lines


LABEL = 11


def _field(label: str, text: str, width: int, style: str = "muted") -> list[Row]:
    lines = wrap(text, max(width - LABEL, 10)) or [""]
    rows: list[Row] = [[(left(label, LABEL), style), (lines[0], "text")]]
    return rows + [[(" " * LABEL, ""), (line, "text")] for line in lines[1:]]


def empty(runs_dir: Path, width: int) -> list[Row]:
    """What stands where there is no run: how to make one."""
    rows: list[Row] = [[]]
    for line in EMPTY:
        style = "bold accent" if line.startswith("  ") else "text"
        rows += [[(part, style)] for part in (wrap(line, width) or [""])]
    rows += [[], *([(part, "muted")] for part in wrap(f"Runs are kept in {runs_dir}.", width))]
    return rows
