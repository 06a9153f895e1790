"""The keys of what lies over a screen, in place of that screen's own."""

from __future__ import annotations

from textual.geometry import Size

from gputop.render.rows import Row, clip, row_width
from gputop.widgets.canvas import Canvas

GAP = "   "


class KeyLine(Canvas):
    """One line of keys, each with what it does."""

    DEFAULT_CSS = "KeyLine { width: auto; height: 1; background: $background; }"

    def __init__(self, *keys: tuple[str, str]):
        super().__init__()
        self._row: Row = []
        for key, word in keys:
            space = GAP if self._row else " "
            self._row += [(space, ""), (key, "bold accent"), (f" {word}", "muted")]

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """As wide as its keys, and a column after them."""
        return row_width(self._row) + 1

    def rows(self, width: int, height: int) -> list[Row]:
        return [clip(self._row, width)]
