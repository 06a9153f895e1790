"""The three panes of the catalog screen."""

from __future__ import annotations

from textual.reactive import reactive

from gputop.feed.catalog import CatalogView
from gputop.render import catalog
from gputop.render.rows import Row, row_width, say, shorten, spread
from gputop.widgets.canvas import Canvas
from gputop.widgets.panel import title_row
from gputop_analysis.catalog.listing import Listed

FOOTNOTE = (
    "TFLOP/s: dense, 16-bit · $/h: median of published rents · ?: a figure is not confirmed · "
    "TF/$: TFLOP/s for a dollar an hour"
)


class CatalogTitle(Canvas):
    """Docked on top: the order, the filter as it is typed, and what the columns mean."""

    _shown: tuple[CatalogView, bool, str] | None = None

    def show(self, view: CatalogView, typing: bool, source: str) -> None:
        """Another view."""
        self._shown = view, typing, source
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        if self._shown is None:
            return []
        view, typing, source = self._shown
        start: Row = [(" gputop catalog", "bold accent")]
        end: Row = [(source + " ", "accent")] if source else []
        if typing or view.words:
            start += [("   / ", "muted"), (view.words + ("▏" if typing else ""), "bold text")]
        order = "   by maker and generation"
        if view.sort:
            order = f"   by {view.sort}"
        start.append((order, "text"))
        room = width - row_width(end) - 1
        text = start if row_width(start) <= room else start[:-1]
        return [spread(text, end, width), [(" " + shorten(FOOTNOTE, width - 2), "muted")]]


class CatalogTable(Canvas, can_focus=True, drawn=("view", "cursor")):
    """The GPUs, with a cursor and up to four marks."""

    view: reactive[CatalogView | None] = reactive(None, repaint=False)
    cursor: reactive[int] = reactive(0, repaint=False)
    first = 0

    @property
    def chosen(self) -> Listed | None:
        """The GPU at the cursor."""
        entries = self.view.shown if self.view is not None else []
        if entries:
            return entries[min(self.cursor, len(entries) - 1)]
        return None

    def move(self, step: int) -> None:
        """Move the cursor."""
        count = len(self.view.shown) if self.view is not None else 0
        self.cursor = min(max(self.cursor + step, 0), max(count - 1, 0))

    def follow(self, name: str) -> None:
        """Put the cursor on a GPU, or on the first where it is not shown."""
        if self.view is not None:
            names = [row.spec.name for row in self.view.shown]
        else:
            names = []
        self.cursor = names.index(name) if name in names else 0

    def rows(self, width: int, height: int) -> list[Row]:
        if self.view is None:
            return []
        inner, entries = width - 2, self.view.shown
        note: Row = [(f"{len(entries)} of {len(self.view.everything)}", "muted")]
        drawn = [title_row("", "GPUs", note, inner, self.has_focus)]
        if entries:
            drawn += self._table(entries, inner, height - 1)
        else:
            drawn += say(
                f"No GPU has {self.view.words!r} in its name, aliases, maker or architecture.",
                inner,
            )
        return [[(" ", ""), *row] for row in drawn]

    def _table(self, found: list[Listed], width: int, height: int) -> list[Row]:
        assert self.view is not None
        room = max(height - 1, 1)
        cursor = min(self.cursor, len(found) - 1)
        last = max(len(found) - room, 0)
        self.first = max(0, min(max(self.first, cursor - room + 1), cursor, last))
        here = cursor if self.has_focus else None
        return catalog.table(
            found,
            width,
            height=height,
            first=self.first,
            cursor=here,
            marked=self.view.marked,
            sort=self.view.sort,
        )


class CatalogFacts(Canvas, can_focus=True, drawn=("first",)):
    """All that is known of the chosen GPU, or of the marked ones side by side."""

    first: reactive[int] = reactive(0, repaint=False)
    _shown: tuple[Listed, ...] = ()
    _most = 0

    def show(self, rows: tuple[Listed, ...]) -> None:
        """Other GPUs."""
        if rows != self._shown:
            self._shown = rows
            self.set_reactive(CatalogFacts.first, 0)
        self.redraw()

    def move(self, step: int) -> None:
        """Scroll."""
        self.first = min(max(self.first + step, 0), self._most)

    def rows(self, width: int, height: int) -> list[Row]:
        if not self._shown:
            return []
        inner, several = width - 2, len(self._shown) > 1
        name = "Side by side" if several else self._shown[0].spec.name
        above = [catalog.names(self._shown, inner)] if several else []
        table = catalog.compared(self._shown, inner)
        room = max(height - 1 - len(above), 1)
        self._most = max(len(table) - room, 0)
        first = min(self.first, self._most)
        note: Row = [("tab, ↓ more", "muted")] if first < self._most else []
        head = title_row("", name, note, inner, self.has_focus)
        return [[(" ", ""), *row] for row in (head, *above, *table[first : first + room])]
