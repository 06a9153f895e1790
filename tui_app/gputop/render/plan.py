"""The strategy screen's rows: the form, the ranked table, the parts of a step as bars."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.feed.planning import AUTO, ENTRIES, MODEL, PINS, Ask, Planned
from gputop.render.bars import stacked_bar
from gputop.render.rows import Row, fill, left, right, row_width, shorten, wrap
from gputop_analysis.planner.choices import NAMES, PARTS, Choice, difference
from gputop_analysis.text import step_time

STYLES = {
    "compute": "forward",
    "tensor_parallel": "comm",
    "context_parallel": "eval",
    "expert_parallel": "compile",
    "pipeline": "h2d",
    "bubble": "other",
    "data_parallel": "backward",
    "optimizer": "optimizer",
    "launch": "checkpoint",
    "input": "data",
}
"""The role whose colour a part of the step has."""
LETTERS = {name: NAMES[name][0].lower() for name in PARTS} | {
    "pipeline": "p",
    "bubble": ".",
    "tensor_parallel": "t",
    "context_parallel": "x",
}
"""Of each part, where there is no colour; each another one."""
MARKS = "ABCD"
PICK = "✓"
"""Before the strategy to run."""
MARK = 3
"""Columns before a strategy's name: its letter where it is marked, and ``PICK``."""
WIDTHS = {"step": 8, "tokens/s": 11, "MFU": 6, "free GiB": 10, "$/Mtok": 8, "of now": 8}
NAME, LEAST_NAME, WIDEST_NAME = 26, 14, 44
"""Columns a strategy's name should have, less than which would make all of them alike, and more
than which would part it from its figures.
"""


PART, FIGURE = 10, 8
"""Columns of a part's name and of its seconds, at least."""
WIDE_PARTS = 40
NAMED = 18
"""Columns of figures from which on a configuration's name stands above them."""
BLOCK_BELOW_ANOTHER = "▇"
"""Lower than a cell, so that a bar does not touch that above it."""


def form(ask: Ask, cursor: int, width: int, focused: bool, typed: str | None = None) -> list[Row]:
    """One line an entry, a heading before each group."""
    rows: list[Row] = []
    group = ""
    for index, entry in enumerate(ENTRIES):
        if entry.group != group:
            group = entry.group
            rows.append([(group, "bold muted")])
        here = index == cursor
        pointer, ground = "  ", ""
        if here:
            pointer = "▸ "
        if here and focused:
            ground = "/cursor"
        if typed is None or not here:
            value = ask.shown(entry.name)
        else:
            value = typed + "▏"
        room = width - 15
        if value == AUTO:
            style = "muted"
        elif entry.name in PINS:
            style = "bold text"
        else:
            style = "text"
        before, behind = " ", " "
        if here and focused and entry.name != MODEL:
            before, behind = "‹", "›"
        row: Row = [
            (pointer, "accent" + ground),
            (left(entry.label, 12), "muted" + ground),
            (before, "accent" + ground),
            (right(shorten(value, room - 2), room - 2), style + ground),
            (behind, "accent" + ground),
        ]
        rows.append(fill(row, width))
    return rows


def columns(width: int, base: bool, rents: bool) -> list[str]:
    """The columns that there is room for beside a strategy's name."""
    wanted = ["step", "tokens/s", "MFU", "free GiB", "$/Mtok", "of now"]
    shown = [name for name in wanted if (name != "$/Mtok" or rents) and (name != "of now" or base)]
    for name in ("$/Mtok", "MFU", "tokens/s"):
        if width - sum(WIDTHS[column] for column in shown) < NAME and name in shown:
            shown.remove(name)
    if width - sum(WIDTHS[column] for column in shown) < LEAST_NAME:
        shown.remove("free GiB")
    return shown


def heading(width: int, shown: list[str]) -> Row:
    """Head of the table's columns."""
    text = "".join(right(name, WIDTHS[name]) for name in shown)
    name = left(" " * MARK + "strategy", max(width - len(text), 0))
    return [(name, "muted"), (text, "muted")]


def table(
    planned: Planned,
    width: int,
    height: int,
    first: int,
    cursor: int | None,
    *,
    marked: Sequence[int],
    base_s: float = 0.0,
) -> list[Row]:
    """The configurations from ``first`` on; ``base_s`` is the live run's step."""
    shown = columns(width, base_s > 0, planned.usd_per_gpu_hour is not None)
    width = min(width, WIDEST_NAME + sum(WIDTHS[name] for name in shown))
    rows = [heading(width, shown)]
    for index, choice in list(enumerate(planned.choices))[first : first + height - 1]:
        mark = MARKS[marked.index(index)] if index in marked else " "
        mark += PICK if planned.pick is not None and choice.index == planned.pick.index else " "
        rows.append(
            line(choice, width, here=index == cursor, mark=mark, base_s=base_s, shown=shown)
        )
    return rows


def line(
    choice: Choice, width: int, here: bool, mark: str, base_s: float, *, shown: list[str]
) -> Row:
    """One configuration; ``mark`` is its letter with ``PICK``, a space for each that it lacks."""
    ground = ""
    if here:
        ground = "/cursor"
    faster = base_s / choice.step_s
    price = ""
    if choice.usd_per_million_tokens is not None:
        price = f"{choice.usd_per_million_tokens:.3f}"
    texts = {
        "step": step_time(choice.step_s),
        "tokens/s": f"{choice.tokens_per_s:,.0f}",
        "MFU": f"{100 * choice.mfu:.0f} %",
        "free GiB": f"{'▲' if choice.tight else ''}{choice.headroom_gib:.1f}",
        "$/Mtok": price,
        "of now": f"x{faster:.2f}",
    }
    styles = {}
    if choice.tight:
        styles["free GiB"] = "high"
    if faster > 1.02:
        styles["of now"] = "good"
    end: Row = [
        (right(texts[name], WIDTHS[name]), styles.get(name, "text") + ground) for name in shown
    ]
    room = max(width - row_width(end) - MARK, 4)
    return [
        (mark + " ", "bold accent" + ground),
        (left(shorten(choice.name, room), room), "bold text" + ground),
        *end,
    ]


def bars(shown: Sequence[Choice], width: int, mono: bool = False) -> list[Row]:
    """The steps of one to four configurations as stacked bars of one scale, then a legend."""
    longest = max(choice.step_s for choice in shown)
    several = len(shown) > 1
    rows: list[Row] = []
    for index, choice in enumerate(shown):
        start: Row = [(MARKS[index] + " ", "bold accent")] if several else []
        end: Row = [(right(step_time(choice.step_s), 9), "text")]
        room = width - row_width(start) - row_width(end)
        cells = max(1, round(room * choice.step_s / longest))
        values = [round(choice.parts_s[name] * 1e9) for name in PARTS]
        bar = stacked_bar(
            values,
            [STYLES[name] for name in PARTS],
            letters=[LETTERS[name] for name in PARTS],
            width=cells,
            mono=mono,
            block=BLOCK_BELOW_ANOTHER if several else "█",
        )
        rows.append([*start, *bar, (" " * (room - cells), ""), *end])
    names = [
        name
        for name in PARTS
        if any(choice.parts_s[name] > 0.002 * choice.step_s for choice in shown)
    ]
    return [*rows, *(_side_by_side if several else _in_a_line)(shown, names, width, mono)]


def _key(name: str, mono: bool) -> tuple[str, str]:
    """What a part looks like in the bar."""
    return (LETTERS[name] if mono else "■") + " ", STYLES[name]


def _in_a_line(shown: Sequence[Choice], names: list[str], width: int, mono: bool) -> list[Row]:
    """Names and seconds of one configuration's parts, as many as fit."""
    row: Row = []
    for name in names:
        text = f"{NAMES[name]} {step_time(shown[0].parts_s[name])}   "
        item: Row = [_key(name, mono), (text, "text")]
        if row_width(row) + row_width(item) <= width:
            row += item
    return [row]


def _side_by_side(shown: Sequence[Choice], names: list[str], width: int, mono: bool) -> list[Row]:
    """A line a part, a column a configuration below its mark and, where it fits, its name; dots
    where not all of them have room.
    """
    label = PART + 1 if width >= WIDE_PARTS else PART
    room, left_out = width - 2 - label, ""
    if len(shown) * FIGURE > room:
        room, left_out = room - 2, " …"
    named_cell = max(len(choice.name) for choice in shown) + 4
    cell = max(min(room // len(shown), named_cell), FIGURE)
    drawn = shown[: max(room // cell, 1)]
    heads = [MARKS[index] for index in range(len(drawn))]
    if cell >= min(NAMED, named_cell):
        heads = [
            f"{mark} {shorten(choice.name, cell - 4)}"
            for mark, choice in zip(heads, drawn, strict=True)
        ]

    def line(key: tuple[str, str], name: str, texts: Sequence[str], style: str) -> Row:
        return [key, (left(name, label), "text"), *((right(text, cell), style) for text in texts)]

    rows = [[*line(("  ", ""), "", heads, "bold accent"), (left_out, "muted")]]
    for name in names:
        texts = [step_time(choice.parts_s[name]) for choice in drawn]
        rows.append(line(_key(name, mono), NAMES[name], texts, "text"))
    memory = [f"{choice.reserved_gib:.1f}" for choice in drawn]
    return [*rows, line(("  ", ""), "memory GiB", memory, "text")]


def reasons(planned: Planned, chosen: Choice, marked: Sequence[Choice], width: int) -> list[Row]:
    """Why the pick and not this one; of two marked ones, why A and not the others."""
    pick = planned.pick or planned.choices[0]
    if len(marked) > 1:
        sentences = []
        for i, choice in enumerate(marked):
            if i:
                sentences.append(f"{MARKS[0]} and not {MARKS[i]}: {difference(marked[0], choice)}")
    elif chosen.index != pick.index:
        sentences = [f"{PICK} {pick.name} and not this: {difference(pick, chosen)}"]
    else:
        other = next((choice for choice in planned.choices if choice.index != pick.index), None)
        sentences = ["the only one that fits" if chosen.fits else "the only one that may fit"]
        if other:
            sentences = [f"{PICK} and not {other.name}: {difference(pick, other)}"]
    return [[(text, "muted")] for sentence in sentences for text in wrap(sentence, width)]
