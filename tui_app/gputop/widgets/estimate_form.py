"""The estimator's form: one line an option, changed with the arrow keys or by typing."""

from __future__ import annotations

from textual.reactive import reactive

from gputop.feed.form import GPU, MODEL, Form, FormLine, shown
from gputop.render.rows import Row, fill, left, right, shorten_middle, text_width
from gputop.widgets.canvas import Canvas
from gputop.widgets.panel import title_row
from gputop_analysis.vram.options import OPTION, values_of

LABEL = 19
"""Columns of a label, which gives way to a value and takes what that leaves."""
SIDES = 4
"""Columns of the mark and the arrows."""
CURSOR = "▏"


def draw(form: Form, width: int, cursor: int, focused: bool, typed: str | None = None) -> list[Row]:
    """Every line, a heading before each group; ``typed`` goes into the line at the cursor."""
    rows: list[Row] = []
    base = values_of(form.base) if form.base is not None else None
    group = ""
    for index, line in enumerate(form.lines()):
        if line.group != group:
            group = line.group
            rows.append([(group, "bold muted")])
        here = index == cursor
        differs = base is not None and line.name in base and base[line.name] != line.value
        rows.append(
            _row(line, width, here, focused=focused, typed=typed if here else None, differs=differs)
        )
    return rows


def row_of(form: Form, cursor: int) -> int:
    """The row on which the line of that number stands, the headings counted."""
    lines = form.lines()[: cursor + 1]
    return cursor + len({line.group for line in lines})


def _row(
    line: FormLine, width: int, here: bool, *, focused: bool, typed: str | None, differs: bool
) -> Row:
    ground = "/cursor" if here and focused else ""
    space = width - SIDES
    value = shown(line) if typed is None else typed + CURSOR
    wanted = max(text_width(line.label), min(LABEL, space - text_width(value)))
    label = min(wanted, space - min(text_width(value), space // 2))
    room = space - label
    value = shorten_middle(value, room) if typed is None else value[-room:]
    arrows = here and focused and typed is None and line.name != MODEL
    if typed is not None:
        style = "accent"
    elif _is_set(line):
        style = "bold text"
    else:
        style = "text"
    mark = "◆" if differs else " "
    if here:
        mark = "▸"
    row: Row = [
        (mark, "accent" + ground),
        (" " + left(line.label, label), "muted" + ground),
    ]
    row += [("‹" if arrows else " ", "accent" + ground), (right(value, room), style + ground)]
    row += [("›" if arrows else " ", "accent" + ground)]
    return fill(row, width)


def _is_set(line: FormLine) -> bool:
    if line.name in (MODEL, GPU):
        return bool(line.value)
    return line.value != OPTION[line.name].default


class EstimateForm(Canvas, can_focus=True, drawn=("form", "cursor", "typed")):
    """Keeps the cursor and what is being typed; the screen owns the form."""

    form: reactive[Form | None] = reactive(None, repaint=False)
    cursor: reactive[int] = reactive(0, repaint=False)
    typed: reactive[str | None] = reactive(None, repaint=False)
    first = 0

    @property
    def line(self) -> FormLine | None:
        """The line at the cursor."""
        lines = self.form.lines() if self.form else []
        return lines[min(self.cursor, len(lines) - 1)] if lines else None

    def move(self, step: int) -> None:
        """Move the cursor."""
        count = len(self.form.lines()) if self.form else 1
        self.cursor = min(max(self.cursor + step, 0), count - 1)

    def rows(self, width: int, height: int) -> list[Row]:
        if self.form is None:
            return []
        inner = width - 2
        cursor = min(self.cursor, len(self.form.lines()) - 1)
        drawn = draw(self.form, inner, cursor, self.has_focus, self.typed)
        room, at = height - 1, row_of(self.form, cursor)
        self.first = min(max(self.first, at - room + 1), at, max(len(drawn) - room, 0))
        if at <= 1:
            self.first = 0
        shown_rows = drawn[self.first : self.first + room]
        count = len(self.form.lines())
        note: Row = [(f"{cursor + 1} of {count}", "muted")] if len(drawn) > room else []
        return [
            [(" ", ""), *row]
            for row in (title_row("", "Setup", note, inner, self.has_focus), *shown_rows)
        ]
