"""The pane of two runs compared."""

from __future__ import annotations

from textual.reactive import reactive

from gputop.feed.comparison import ComparedRuns
from gputop.feed.plots import Trouble
from gputop.render import comparison
from gputop.render.rows import Row, say
from gputop.widgets.canvas import Canvas
from gputop.widgets.panel import title_row


class ComparisonPane(Canvas, can_focus=True, drawn=("answer", "first")):
    """All of the comparison below a title, scrolled where it is more than fits."""

    answer: reactive[ComparedRuns | Trouble | None] = reactive(None, repaint=False)
    """None while it is read."""
    first: reactive[int] = reactive(0, repaint=False)
    """Rows that are scrolled away."""
    names: tuple[str, str] = ("", "")
    _most = 0

    def move(self, step: int) -> None:
        """Scroll."""
        self.first = min(max(self.first + step, 0), self._most)

    def rows(self, width: int, height: int) -> list[Row]:
        inner, room = width - 2, height - 2
        content = self._content(inner)
        self._most = max(len(content) - room, 0)
        first = min(self.first, self._most)
        shown = content[first : first + room]
        note: Row = []
        if len(shown) < len(content):
            note = [(f"↑↓ rows {first + 1}–{first + len(shown)} of {len(content)}", "muted")]
        title = title_row("", "Run B beside its baseline A", note, inner, True)
        return [[(" ", ""), *row] for row in (title, [], *shown)]

    def _content(self, width: int) -> list[Row]:
        if isinstance(self.answer, ComparedRuns):
            return comparison.draw(self.answer, width)
        if isinstance(self.answer, Trouble):
            return say(self.answer.text, width)
        return say(f"Comparing {self.names[0]} and {self.names[1]}.", width)
