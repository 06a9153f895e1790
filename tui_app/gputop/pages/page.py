"""Page, the content of a screen above the main one: rows for the width, scrolled."""

from __future__ import annotations

from textual.reactive import reactive

from gputop.feed.pages import Loader
from gputop.feed.plots import Trouble
from gputop.feed.snapshot import Snapshot
from gputop.render.rows import Row, row_text, row_width, say
from gputop.widgets.canvas import Canvas
from gputop.widgets.panel import title_row


class Page(Canvas, can_focus=True, drawn=("snapshot",)):
    """A title line and a content. Subclasses read by ``loader`` and draw by ``content``."""

    key = ""
    title = ""
    reads: type = object
    """Type of what the loader gives: anything else is not there yet."""
    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)
    scrolled_by = "↑↓"
    """Keys that the title line names where there are more rows."""
    first = 0
    """Rows that are scrolled away."""
    kept = 0
    """Rows at the top of the content that stay, such as a table's heading."""

    def __init__(self, *, id: str | None = None):
        super().__init__(id=id)
        self._count = 0

    def loader(self) -> Loader:
        """Request for what is to be read from the record while this is on the screen."""
        raise AssertionError(f"{type(self).__name__} reads nothing")

    def content(self, page: object, width: int, height: int) -> list[Row]:
        """All rows below the title line; those that do not fit are scrolled to."""
        raise AssertionError(f"{type(self).__name__} has no content")

    def idle(self) -> frozenset[str]:
        """Actions of the screen that have nothing to act on now: the footer does not offer them."""
        return frozenset()

    def note(self) -> Row:
        """Note at the right end of the title line."""
        return []

    def copy_text(self) -> str:
        """Text that ``y`` copies."""
        width, height = self.size
        return "\n".join(row_text(row).rstrip() for row in self._below_title(width, height - 1))

    @property
    def page(self) -> object | None:
        """Data that was read for this screen; None while it is not there."""
        page = None
        if self.snapshot:
            page = self.snapshot.page
        if isinstance(page, (self.reads, Trouble)):
            return page
        return None

    def rows(self, width: int, height: int) -> list[Row]:
        inner = width - 2
        below = self._below_title(inner, height - 1)
        top, body = below[: self.kept], below[self.kept :]
        self._count = len(body)
        self.first = min(self.first, max(0, len(body) - self._rows_below(height)))
        shown = body[self.first : self.first + self._rows_below(height)]
        note = self.note()
        if len(shown) < len(body):
            last = self.first + len(shown)
            more = f"{self.scrolled_by} rows {self.first + 1}–{last} of {len(body)}"
            both = [*note, ("  " * bool(note) + more, "muted")]
            room = inner - len(f"{self.key} {self.title} ") - 3
            note = both if row_width(both) <= room else [(more, "muted")]
        padded = []
        for row in (
            title_row(self.key, self.title, note=note, width=inner, focused=True),
            *top,
            *shown,
        ):
            padded.append([(" ", ""), *row])
        return padded

    def _below_title(self, width: int, height: int) -> list[Row]:
        page = self.page
        if page is None:
            return say("Reading the record.", width)
        if isinstance(page, Trouble):
            return say(page.text, width)
        return self.content(page, width, height)

    def move(self, step: int) -> None:
        """One item up or down; on a page without items, one row."""
        self.scroll_by(step)

    def turn(self, direction: int) -> None:
        """One screenful up or down."""
        self.move(direction * max(1, self._rows_below(self.size.height) - 2))

    def scroll_by(self, rows: int) -> None:
        """Scroll, as far as there is something."""
        last = max(0, self._count - self._rows_below(self.size.height))
        self.first = min(max(self.first + rows, 0), last)
        self.redraw()

    def _rows_below(self, height: int) -> int:
        """Rows for what is scrolled, below the title and what is kept."""
        return max(1, height - 1 - self.kept)
