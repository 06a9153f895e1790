"""A numbered panel: a title line with a rule, then the content."""

from __future__ import annotations

from typing import ClassVar

from textual.reactive import reactive

from gputop.feed.snapshot import Snapshot
from gputop.render.rows import Row, row_width, shorten, spread, text_width
from gputop.widgets.canvas import Canvas


def title_row(number: str, title: str, note: str, width: int, focused: bool) -> Row:
    """``1 Step ───────── note``: the rule and the title light up when the panel has the focus."""
    rule = "accent" if focused else "rule"
    start: Row = [
        (number, rule if focused else "muted"),
        (" " + title + " ", "bold accent" if focused else "bold text"),
    ]
    room = width - row_width(start) - 3
    note = shorten(note, room) if room > 8 else ""
    end: Row = [(" " + note, "muted")] if note else []
    line = width - row_width(start) - (text_width(note) + 1 if note else 0)
    return [*start, ("─" * max(line, 0), rule), *end]


def at_edges(start: Row, end: Row, width: int) -> Row:
    """Two ends of one content line."""
    return spread(start, end, width)


class Panel(Canvas, can_focus=True):
    """One numbered part of the main screen."""

    number: ClassVar[str] = ""
    title: ClassVar[str] = ""
    #: rows of content that are enough; None: as many as there are
    snapshot: reactive[Snapshot | None] = reactive(None, repaint=False)

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """Rows below the title."""
        raise AssertionError(f"{type(self).__name__} has no content")

    def note(self, snapshot: Snapshot) -> str:
        """What stands at the right end of the title line."""
        return ""

    def copy_text(self, snapshot: Snapshot) -> str:
        """What ``y`` copies: the content as text."""
        from gputop.render.rows import row_text

        return "\n".join(
            row_text(row).rstrip() for row in self.content(snapshot, self.size.width, self.size.height - 1)
        )

    def rows(self, width: int, height: int) -> list[Row]:
        snapshot = self.snapshot
        if snapshot is None:
            return []
        head = title_row(self.number, self.title, self.note(snapshot), width, self.has_focus)
        return [head, *self.content(snapshot, width, height - 1)] if height > 1 else [head]

    def watch_snapshot(self) -> None:
        self.redraw()

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()
