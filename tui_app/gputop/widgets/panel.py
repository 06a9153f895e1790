"""A numbered panel: a title line with a rule, then the content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.events import Click
from textual.reactive import reactive

from gputop.feed.snapshot import Snapshot
from gputop.panels import PANELS, panel
from gputop.render.rows import Row, row_width
from gputop.widgets.canvas import Canvas
from gputop.widgets.frame import EDGES, SIDES, framed

if TYPE_CHECKING:
    from textual.widget import Widget
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


def go_to_tab(widget: Widget, number: str, x: int) -> None:
    """Go to the panel whose tab stands at cell ``x`` of a title line."""
    row = tabs(number, widget.size.width)
    start = widget.size.width - row_width(row)
    for spec in (spec for spec in PANELS if spec.tab):
        end = start + len(f"{spec.number} {spec.label}")
        if start <= x < end:
            widget.app.call_later(widget.screen.run_action, f"screen.panel('{spec.id}')")
        start = end + 2


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


class Panel(Described, Canvas, can_focus=True, drawn=("snapshot", "tabbed", "boxed")):
    """One numbered part of the main screen."""

    tabbed: reactive[bool] = reactive(False, repaint=False)
    boxed: reactive[bool] = reactive(False, repaint=False)
    """Whether it has a frame; without one, a title line."""
    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)

    def on_click(self, event: Click) -> None:
        """A click on a tab goes there; one into the content is the panel's own."""
        if event.y == 0 and self.tabbed:
            go_to_tab(self, self.number, event.x)
        elif event.y > 0:
            self.clicked(event.x - (2 if self.boxed else 0), event.y - 1)

    def clicked(self, x: int, y: int) -> None:
        """A click at a cell and a row of the content."""

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """Rows below the title."""
        raise AssertionError(f"{type(self).__name__} has no content")

    def before_read(self, snapshot: Snapshot, width: int) -> list[Row]:
        """Rows below the title while nothing of the record has been read."""
        return []

    def heading(self, snapshot: Snapshot) -> str:
        """The title, with what it covers where that is not everything."""
        return self.title

    def note(self, snapshot: Snapshot) -> Row:
        """What stands at the right end of the title line, if it fits."""
        return []

    def copy_text(self, snapshot: Snapshot) -> str:
        """What ``y`` copies: the content as text."""
        from gputop.render.rows import row_text

        width, height = self.inside(*self.size)
        return "\n".join(row_text(row).rstrip() for row in self.content(snapshot, width, height))

    def inside(self, width: int, height: int) -> tuple[int, int]:
        """Cells and rows for the content."""
        if self.boxed:
            return max(width - SIDES, 1), max(height - EDGES, 0)
        return width, max(height - 1, 0)

    def rows(self, width: int, height: int) -> list[Row]:
        snapshot = self.snapshot
        if snapshot is None:
            return []
        if self.tabbed:
            note = tabs(self.number, width)
        else:
            note = self.note(snapshot)
        cells, room = self.inside(width, height)
        if snapshot.unread:
            content = self.before_read(snapshot, cells)
        else:
            content = self.content(snapshot, cells, room) if room > 0 else []
        heading = self.heading(snapshot)
        if not self.boxed:
            return [title_row(self.number, heading, note, width, self.has_focus), *content]
        rule = "accent" if self.has_focus else "rule"
        return framed(heading, content, width, height, number=self.number, note=note, rule=rule)
