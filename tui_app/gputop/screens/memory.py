"""The screen of an allocator snapshot: its course above, and one of several tables below."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen

from gputop.messages import PageClosed
from gputop.render import memory as render
from gputop.render.rows import Row, row_text, row_width, shorten_middle
from gputop.screens.moving import Moving
from gputop.screens.page import bindings
from gputop.screens.typed import Typed
from gputop.widgets.canvas import Canvas
from gputop.widgets.footer import Footer
from gputop.widgets.panel import title_row
from gputop_analysis.snapshots.analyse import Memory
from gputop_analysis.snapshots.text import head


class MemoryCourse(Canvas):
    """What the snapshot is of, and memory over its events."""

    def __init__(self, memory: Memory):
        super().__init__(id="course")
        self._memory = memory

    def rows(self, width: int, height: int) -> list[Row]:
        inner = width - 2
        title: Row = [("gputop memory", "bold accent")]
        sentences = [[(shorten_middle(line, inner), "text")] for line in head(self._memory)]
        above = [title, *sentences]
        below = render.course(self._memory, inner, height - len(above))
        return [[(" ", ""), *row] for row in [*above, *below]]


class MemoryTables(Canvas, can_focus=True):
    """One of the tables, with the titles of the others."""

    def __init__(self, memory: Memory, before: Memory | None):
        super().__init__(id="tables")
        self._views = render.views(memory, before)
        self.chosen = 0
        self.first = 0
        self._count = 0

    def rows(self, width: int, height: int) -> list[Row]:
        inner, room = width - 2, height - 1
        below = self._views[self.chosen].draw(inner)
        self._count = len(below)
        self.first = min(self.first, max(0, len(below) - room))
        title = title_row("", self._views[self.chosen].title, self._note(inner, room), inner, True)
        return [[(" ", ""), *row] for row in [title, *below[self.first : self.first + room]]]

    def _note(self, width: int, room: int) -> Row:
        """What is hidden of the table, and the other ones where all of their names fit."""
        hidden: Row = []
        if self._count > room:
            last = min(self.first + room, self._count)
            hidden = [(f"  ↑↓ {self.first + 1}–{last} of {self._count:,}", "muted")]
        shown = self._views[self.chosen]
        other_titles: Row = [
            (f"  {view.title}", "muted") for view in self._views if view is not shown
        ]
        fits = row_width([*other_titles, *hidden]) + len(shown.title) + 4 <= width
        return [*other_titles, *hidden] if fits else hidden

    def most_rows(self, width: int) -> int:
        """Rows of the longest table, with its title."""
        return 1 + max(len(view.draw(width - 2)) for view in self._views)

    def turn(self, by: int) -> None:
        """Go to the next table, or the one before."""
        self.chosen = (self.chosen + by) % len(self._views)
        self.first = 0
        self.redraw()

    def scroll_by(self, rows: int) -> None:
        """Scroll, as far as there is something."""
        room = self.size.height - 1
        self.first = min(max(self.first + rows, 0), max(0, self._count - room))
        self.redraw()

    def copy_text(self) -> str:
        """All of the table, as text."""
        rows = self._views[self.chosen].draw(max(40, self.size.width - 2))
        return "\n".join(row_text(row).rstrip() for row in rows)


class MemoryScreen(Typed, Moving, Screen[None]):
    """One snapshot, and where there is another one what changed since that."""

    NAME = "memory"
    BINDINGS = bindings(NAME)
    DEFAULT_CSS = """
    MemoryScreen { layout: vertical; background: $background; color: $role-text; }
    MemoryScreen #course { height: 1fr; }
    MemoryScreen #footer { dock: bottom; height: 1; }
    """
    AUTO_FOCUS = "#tables"

    def __init__(self, memory: Memory, before: Memory | None = None):
        super().__init__()
        self._memory = memory
        self._before = before

    def compose(self) -> ComposeResult:
        yield MemoryCourse(self._memory)
        yield MemoryTables(self._memory, self._before)
        yield Footer("live", False, self.NAME, id="footer")

    def on_resize(self) -> None:
        """The tables have the rows that they fill, at most half; the course has the others."""
        half = self.size.height // 2
        self.tables.styles.height = min(half, self.tables.most_rows(self.size.width))

    @property
    def tables(self) -> MemoryTables:
        """The lower half."""
        return self.query_one(MemoryTables)

    def copy_text(self) -> str:
        """What ``y`` copies."""
        return self.tables.copy_text()

    def _move(self, step: int) -> None:
        self.tables.scroll_by(step)

    def action_next_table(self) -> None:
        self.tables.turn(1)

    def action_table_before(self) -> None:
        self.tables.turn(-1)

    def action_back(self) -> None:
        self.post_message(PageClosed())
