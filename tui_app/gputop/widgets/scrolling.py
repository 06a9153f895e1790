"""A panel with a cursor over its items, which scrolls where there are more than fit."""

from __future__ import annotations

from textual.reactive import reactive

from gputop.feed.snapshot import Snapshot
from gputop.widgets.panel import Panel


class ScrollingPanel(Panel, drawn=("cursor",)):
    """Keeps ``cursor`` (index of the chosen item) and ``first`` (index of the first item shown)."""

    cursor: reactive[int] = reactive(0, repaint=False)
    first = 0

    def item_count(self, snapshot: Snapshot) -> int:
        """How many items there are."""
        return 0

    def heading(self, snapshot: Snapshot) -> str:
        count, room = self.item_count(snapshot), self.visible_items()
        if count <= room:
            return self.title
        return f"{self.title} {self.first + 1}–{min(self.first + room, count)} of {count}"

    def visible_items(self) -> int:
        """How many fit below the title."""
        return max(1, self.inside(*self.size)[1])

    def move(self, step: int) -> None:
        """Move the cursor by ``step`` items."""
        count = self.item_count(self.snapshot) if self.snapshot else 0
        self.cursor = min(max(self.cursor + step, 0), max(count - 1, 0))

    def rows_each(self) -> int:
        """Rows of one item."""
        return 1

    def head_rows(self) -> int:
        """Rows above the first item."""
        return 0

    def clicked(self, x: int, y: int) -> None:
        """Choose the item under the pointer, and open it."""
        count = self.item_count(self.snapshot) if self.snapshot else 0
        index = self.first + (y - self.head_rows()) // self.rows_each()
        if y >= self.head_rows() and index < min(count, self.first + self.visible_items()):
            self.cursor = index
            self.choose()

    def choose(self) -> None:
        """Open the item under the cursor."""

    def page(self, direction: int) -> None:
        """Move the cursor by one screenful."""
        self.move(direction * self.visible_items())

    def rows(self, width: int, height: int):
        self._keep_in_view()
        return super().rows(width, height)

    def _keep_in_view(self) -> None:
        count = self.item_count(self.snapshot) if self.snapshot else 0
        room = self.visible_items()
        cursor = min(self.cursor, max(count - 1, 0))
        if cursor != self.cursor:
            self.set_reactive(ScrollingPanel.cursor, cursor)
        first = min(self.first, max(count - room, 0))
        self.first = min(max(first, cursor - room + 1), cursor)
