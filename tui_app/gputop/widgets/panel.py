"""A numbered panel: a title line with a rule, then the content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.reactive import reactive

from gputop.feed.snapshot import Snapshot
from gputop.panels import PANELS, panel
from gputop.render.rows import Row, row_width
from gputop.widgets.canvas import Canvas

if TYPE_CHECKING:
    from textual.widget import Widget as Base
else:
    Base = object  # a widget's style sheet is inherited from its first base that is a node


def title_row(number: str, title: str, note: Row, width: int, focused: bool) -> Row:
    """``1 Step ───────── note``: the rule and the title light up when the panel has the focus."""
    rule = "accent" if focused else "rule"
    start: Row = [
        (number, rule if focused else "muted"),
        (" " * bool(number) + title + " ", "bold accent" if focused else "bold text"),
    ]
    room = width - row_width(start) - 3
    note = note if row_width(note) <= room else []
    end: Row = [(" ", ""), *note] if note else []
    line = width - row_width(start) - row_width(end)
    return [*start, (("━" if focused else "─") * max(line, 0), rule), *end]


def tabs(number: str, width: int) -> Row:
    """The panels that share this place in the compact layout, the present one marked."""
    row: Row = []
    for spec in PANELS:
        if not spec.tab:
            continue
        here = spec.number == number
        row += [
            ("  " if row else "", ""),
            (spec.number, "accent" if here else "muted"),
            (f" {spec.label}", "text" if here else "muted"),
        ]
    return row if row_width(row) < width else []


class Described(Base):
    """Mixed into a widget whose id names a row of the table of panels."""

    @property
    def number(self) -> str:
        """The key that goes to it; empty where the widget stands alone."""
        spec = panel(self.id)
        return spec.number if spec else ""

    @property
    def title(self) -> str:
        spec = panel(self.id)
        return spec.title if spec else ""


class Panel(Described, Canvas, can_focus=True, drawn=("snapshot", "tabbed")):
    """One numbered part of the main screen."""

    tabbed: reactive[bool] = reactive(False, repaint=False)
    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """Rows below the title."""
        raise AssertionError(f"{type(self).__name__} has no content")

    def heading(self, snapshot: Snapshot) -> str:
        """The title, with what it covers where that is not everything."""
        return self.title

    def note(self, snapshot: Snapshot) -> Row:
        """What stands at the right end of the title line, if it fits."""
        return []

    def copy_text(self, snapshot: Snapshot) -> str:
        """What ``y`` copies: the content as text."""
        from gputop.render.rows import row_text

        return "\n".join(
            row_text(row).rstrip()
            for row in self.content(snapshot, self.size.width, self.size.height - 1)
        )

    def rows(self, width: int, height: int) -> list[Row]:
        snapshot = self.snapshot
        if snapshot is None:
            return []
        note = tabs(self.number, width) if self.tabbed else self.note(snapshot)
        head = title_row(self.number, self.heading(snapshot), note, width, self.has_focus)
        return [head, *self.content(snapshot, width, height - 1)] if height > 1 else [head]
