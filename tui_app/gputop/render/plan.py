"""The strategy screen's rows: the form, the ranked table, the parts of a step as bars."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.feed.planning import AUTO, ENTRIES, MODEL, PINS, Ask, Planned
from gputop.render.bars import stacked_bar
from gputop.render.rows import Row, clip, fill, left, right, row_width, shorten, wrap
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
}
MARKS = "ABCD"
PICK = "✓"
"""Before the strategy to run."""
WIDTHS = {"step": 8, "tokens/s": 11, "MFU": 6, "free GiB": 9, "$/Mtok": 8, "of now": 8}
NAME, WIDEST_NAME = 26, 44
"""Columns a strategy's name should have, and more than which would part it from its figures."""


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
    return shown


def heading(width: int, shown: list[str]) -> Row:
    """Head of the table's columns."""
    text = "".join(right(name, WIDTHS[name]) for name in shown)
    return [(left("  strategy", max(width - len(text), 10)), "muted"), (text, "muted")]


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
        if planned.pick is not None and choice.index == planned.pick.index:
            pick = PICK
        else:
            pick = " "
        if index in marked:
            mark = MARKS[marked.index(index)]
        else:
            mark = pick
        rows.append(
            line(choice, width, here=index == cursor, mark=mark, base_s=base_s, shown=shown)
        )
    return rows


def line(
    choice: Choice, width: int, here: bool, mark: str, base_s: float, *, shown: list[str]
) -> Row:
    """One configuration; ``mark`` is a letter before it."""
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
    room = max(width - row_width(end) - 2, 4)
    return [
        (mark + " ", "bold accent" + ground),
        (left(shorten(choice.name, room), room), "bold text" + ground),
        *end,
    ]


def bars(shown: Sequence[Choice], width: int, mono: bool = False) -> list[Row]:
    """The steps of one to four configurations as stacked bars of one scale, then a legend."""
    longest = max(choice.step_s for choice in shown)
    rows: list[Row] = []
    for index, choice in enumerate(shown):
        start: Row = []
        if len(shown) > 1:
            start = [(MARKS[index] + " ", "bold accent")]
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
        )
        rows.append([*start, *bar, (" " * (room - cells), ""), *end])
    return [*rows, *legend(shown, width)]


def legend(shown: Sequence[Choice], width: int) -> list[Row]:
    """Names and seconds of the parts that are there; of several configurations, a column each."""
    names = [
        name
        for name in PARTS
        if any(choice.parts_s[name] > 0.002 * choice.step_s for choice in shown)
    ]
    if len(shown) == 1:
        row: Row = []
        for name in names:
            item: Row = [
                ("■ ", STYLES[name]),
                (f"{NAMES[name]} {step_time(shown[0].parts_s[name])}   ", "text"),
            ]
            if row_width(row) + row_width(item) <= width:
                row += item
        return [row]
    rows: list[Row] = []
    for name in names:
        cells: Row = [(right(step_time(choice.parts_s[name]), 11), "text") for choice in shown]
        rows.append(clip([("■ ", STYLES[name]), (left(NAMES[name], 12), "text"), *cells], width))
    memory: Row = [(right(f"{choice.reserved_gib:.1f} GiB", 11), "text") for choice in shown]
    return [*rows, clip([("  ", ""), (left("memory", 12), "muted"), *memory], width)]


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
        sentences = ["the only one that fits"]
        if other:
            sentences = [f"{PICK} and not {other.name}: {difference(pick, other)}"]
    return [[(text, "muted")] for sentence in sentences for text in wrap(sentence, width)]
