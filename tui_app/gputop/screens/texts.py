"""Texts of the reading dialogs: help, a finding, stacks, a profile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from textual.content import Content
from textual.screen import Screen

from gputop import palette, short_words
from gputop.actions import Action, applies, in_panels, on_screen
from gputop.feed.snapshot import Notice
from gputop.render import numbers
from gputop.render.rows import shorten, wrap
from gputop.screens.dialog import text_columns
from gputop.widgets.canvas import Canvas
from gputop.widgets.step_chart import PARTS
from gputop_analysis.text import MISSING

Colours = Mapping[str, str]


ROWS_AROUND = 6
"""Rows that the dialog takes around its text, its margin included."""
DESCRIPTIONS_FROM = 76
"""Columns from which on a key has its sentence."""
ENTRY = 22
"""Columns of a key with its word."""
KEY = 10
OPERATOR = 44
"""Columns of an operator's name in a profile."""
SELF_EVIDENT = frozenset(
    [
        "up",
        "down",
        "page_up",
        "page_down",
        "home",
        "end",
        "seek_forward",
        "later",
        "sideways(1)",
        "more",
    ]
)
"""Left out of the columns; of a pair of keys the first one says both."""


OF_NO_RUN = frozenset(["estimator", "strategy", "catalog", "topology", "runs"])
"""Screens on which no phase and no finding is drawn."""


def help_text(
    mode: str,
    control: bool,
    colours: Colours,
    screen: str = "main",
    size: tuple[int, int] = (120, 70),
    *,
    seen: str = "",
    ended: bool = False,
) -> Content:
    """All actions that apply on a screen, by group, then what the colours mean, and of the short
    words in ``seen``, the text on the screen, what they mean.

    Each has its sentence where all of them fit a terminal of ``size``, else its word, in columns.
    """
    groups: dict[str, list[Action]] = {}
    for action in [*on_screen(screen), *(in_panels() if screen == "main" else [])]:
        if applies(action, mode, control, ended):
            groups.setdefault(action.group, []).append(action)
    width, height = text_columns(size[0]), size[1] - ROWS_AROUND
    rows = sum(len(actions) + 2 for actions in groups.values()) + 4
    if rows <= height and width >= DESCRIPTIONS_FROM:
        lines = _with_sentences(groups, colours)
    else:
        lines = _in_columns(groups, colours, max(width // ENTRY, 1), mode)
    if screen not in OF_NO_RUN:
        lines += _phase_samples(colours, width)
        lines.append(Content.assemble(*_severity_samples(colours)))
    words = " · ".join(short_words.meanings(seen))
    lines += [Content.styled(line, colours["role-muted"]) for line in wrap(words, width) if line]
    return Content("\n").join(lines)


def _with_sentences(groups: Mapping[str, list[Action]], colours: Colours) -> list[Content]:
    lines: list[Content] = []
    for group, actions in groups.items():
        lines.append(Content.styled(group, f"bold {colours['role-accent']}"))
        for action in actions:
            words = (f"  {action.shown:<11}", "bold"), (action.description, "")
            lines.append(Content.assemble(*words))
        lines.append(Content(""))
    return lines


def _in_columns(
    groups: Mapping[str, list[Action]], colours: Colours, columns: int, mode: str
) -> list[Content]:
    """Whole groups below each other in at most so many columns, a line between two."""
    headline = f"bold {colours['role-accent']}"
    blocks: list[list[Content]] = []
    for group, actions in groups.items():
        block = [Content.styled(f"{group:<{ENTRY}}", headline)]
        for action in actions:
            if action.id not in SELF_EVIDENT:
                word = action.label_in(mode)
                block.append(
                    Content.assemble((f"{action.shown:<{KEY}}", "bold"), f"{word:<{ENTRY - KEY}}")
                )
        blocks.append(block)
    nothing = Content(" " * ENTRY)
    stacks = [_below_each_other(stack) for stack in _stacked(blocks, columns)]
    lines = [Content("").join(row) for row in zip_longest(*stacks, fillvalue=nothing)]
    return [*lines, Content("")]


def _stacked(blocks: list[list[Content]], columns: int) -> list[list[list[Content]]]:
    """The blocks in columns of about one height: the longest first, each where the column is
    shortest; in a column, and of the columns, in their first order.
    """
    order = sorted(range(len(blocks)), key=lambda index: -len(blocks[index]))
    stacks: list[list[int]] = [[] for _ in range(min(columns, len(blocks)))]
    for index in order:
        shortest = min(stacks, key=lambda stack: sum(len(blocks[i]) + 1 for i in stack))
        shortest.append(index)
    return [[blocks[index] for index in stack] for stack in sorted(map(sorted, stacks))]


def _below_each_other(blocks: list[list[Content]]) -> list[Content]:
    lines: list[Content] = []
    for block in blocks:
        lines += [Content(" " * ENTRY)] * bool(lines) + block
    return lines


def _phase_samples(colours: Colours, width: int) -> list[Content]:
    """The colours of a step's parts, in as few lines as that takes, which are of about one length;
    no mark parts from its name.
    """
    samples = []
    for name, look in PARTS.items():
        colour = colours.get(f"phase-{look.style}") or colours[f"role-{look.style}"]
        samples.append(Content.assemble(("■ ", colour), f"{name}  "))
    lines = _filled(samples, width)
    narrower = width - 1
    while len(_filled(samples, narrower)) == len(lines):
        narrower -= 1
    return _filled(samples, narrower + 1)


def _filled(samples: list[Content], width: int) -> list[Content]:
    lines: list[Content] = [Content("")]
    for sample in samples:
        if lines[-1].cell_length and lines[-1].cell_length + sample.cell_length > width:
            lines.append(Content(""))
        lines[-1] += sample
    return lines


def _severity_samples(colours: Colours) -> list[tuple[str, str]]:
    return [
        (f"{mark.glyph} {mark.word}   ", colours[f"role-{mark.style}"])
        for mark in palette.SEVERITY.values()
    ]


def text_on(screen: Screen[Any]) -> str:
    """What is written on a screen."""
    return "\n".join(canvas.drawn_text for canvas in screen.query(Canvas) if canvas.display)


def memory_snapshot_text(notice: Notice, run: str) -> str:
    """What became of the memory snapshot that was asked for, in one sentence."""
    rank = "" if notice.rank is None else f"rank {notice.rank}: "
    if notice.body.get("error"):
        return f"{rank}no memory snapshot: {notice.body['error']}"
    return f"{rank}memory snapshot written: gputop memory {run}"


def notice_title(notice: Notice) -> str:
    """Title of the dialog that shows what an agent sent."""
    rank = "" if notice.rank is None else f" of rank {notice.rank}"
    return {"profile": "Profile", "stack_dump": "Stacks"}.get(notice.kind, notice.kind) + rank


def notice_text(notice: Notice, width: int) -> str:
    """What an agent sent on request, as text; a table in ``width`` columns."""
    if notice.kind == "profile":
        return _profile(notice.body, width)
    return _stacks(notice.body)


def _profile(body: Mapping[str, Any], width: int) -> str:
    table = [row for row in body.get("table") or [] if isinstance(row, dict)]
    on_device = any(row.get("device_ms") for row in table)
    clock, of = ("device_ms", "device") if on_device else ("cpu_ms", "CPU")
    total = sum(float(row.get(clock) or 0) for row in table)
    wide = max(min(OPERATOR, width - 25 - 11 * on_device), 12)
    head = f"{'operator':<{wide}}{'calls':>8}{'cpu ms':>10}" + f"{'device ms':>11}" * on_device
    steps = f"{body.get('steps', MISSING)} steps together; share of these operators' {of} time"
    lines = [*wrap(steps, width), f"{head}{'share':>7}"]
    for row in table:
        name = shorten(str(row.get("op", MISSING)), wide - 1)
        line = f"{name:<{wide}}{row.get('calls', 0):>8}"
        line += f"{numbers.ms_column(float(row.get('cpu_ms') or 0), 2):>10}"
        device = row.get("device_ms")
        shown = numbers.ms_column(None if device is None else float(device), 2)
        share = numbers.percent(float(row.get(clock) or 0) / total) if total else numbers.NONE
        lines.append(line + f"{shown:>11}" * on_device + f"{share:>7}")
    return "\n".join(lines)


def _stacks(body: Mapping[str, Any]) -> str:
    lines = [f"in {body.get('phase', MISSING)}, step {body.get('step', MISSING)}"]
    for thread in body.get("threads") or []:
        mark = " (training)" if thread.get("training") else ""
        lines += ["", f"{thread.get('name', 'thread')}{mark}"]
        lines += [f"  {frame}" for frame in thread.get("frames") or []]
    return "\n".join(lines)
