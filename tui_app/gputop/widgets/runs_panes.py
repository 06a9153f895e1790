"""The panes of the screen of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.events import Click
from textual.message import Message
from textual.reactive import reactive

from gputop.feed.runs import MOST_MARKED, RunRow, RunsView
from gputop.render import runs
from gputop.render.rows import Row, say, shorten, spread
from gputop.widgets.canvas import Canvas
from gputop.widgets.panel import title_row


class RunsTitle(Canvas, drawn=("view", "typing")):
    """Docked on top: the filter as it is typed, and what the marks are for."""

    view: reactive[RunsView] = reactive(RunsView(), repaint=False)
    typing: reactive[bool] = reactive(False, repaint=False)

    def rows(self, width: int, height: int) -> list[Row]:
        start: Row = [(" gputop runs", "bold accent")]
        if self.typing or self.view.filter:
            typed = self.view.filter + ("▏" if self.typing else "")
            start += [("   / ", "muted"), (typed, "bold text")]
        count = len(self.view.marked)
        words = {0: "space marks two runs to compare", 1: "one marked: space marks the other"}
        hint = words.get(count, "c compares the two marked runs")
        style = "accent" if count == MOST_MARKED else "muted"
        return [spread(start, [(hint + " ", style)], width)]


AROUND_ROWS = 3
"""Rows of the table beside its runs: the title, the heading, an empty one."""


class RunsTable(Canvas, can_focus=True, drawn=("view", "cursor")):
    """The runs, the newest first, with a cursor and up to two marks."""

    class Opened(Message):
        """A run was clicked on that had the cursor already."""

    view: reactive[RunsView] = reactive(RunsView(), repaint=False)
    cursor: reactive[int] = reactive(0, repaint=False)
    first = 0

    def __init__(self, now_ns: Callable[[], int], runs_dir: Path, *, id: str | None = None):
        super().__init__(id=id)
        self._now_ns = now_ns
        self._runs_dir = runs_dir

    @property
    def chosen(self) -> RunRow | None:
        """The run at the cursor."""
        rows = self.view.shown
        return rows[min(self.cursor, len(rows) - 1)] if rows else None

    def move(self, step: int) -> None:
        """Move the cursor."""
        self.cursor = min(max(self.cursor + step, 0), max(len(self.view.shown) - 1, 0))

    def follow(self, path: Path | None) -> None:
        """Put the cursor on a run, or on the first where it is not shown."""
        paths = [row.path for row in self.view.shown]
        self.cursor = paths.index(path) if path in paths else 0

    def in_sight(self) -> list[RunRow]:
        """The runs on the screen, the one at the cursor first."""
        rows = self.view.shown[self.first : self.first + max(self.size.height, 1)]
        chosen = self.chosen
        return sorted(rows, key=lambda row: row is not chosen)

    def rows(self, width: int, height: int) -> list[Row]:
        inner, rows = width - 2, self.view.shown
        note: Row = [(f"{len(rows)} of {len(self.view.everything)}, newest first", "muted")]
        drawn = [title_row("", "Runs", note, inner, self.has_focus)]
        if rows:
            drawn += self._table(rows, inner, height - 1)
        elif self.view.everything:
            drawn += say(f"No run has {self.view.filter!r} in its name, command or verdict.", inner)
        elif self.view.listed:
            drawn += runs.empty(self._runs_dir, inner)
        else:
            drawn += say("Reading the runs.", inner)
        return [[(" ", ""), *row] for row in drawn]

    def _table(self, rows: list[RunRow], width: int, height: int) -> list[Row]:
        room = max(height - 1, 1)
        cursor = min(self.cursor, len(rows) - 1)
        last = max(len(rows) - room, 0)
        self.first = max(0, min(max(self.first, cursor - room + 1), cursor, last))
        return runs.table(
            rows,
            width,
            first=self.first,
            height=height,
            cursor=cursor,
            marks=self.view.letters,
            now_ns=self._now_ns(),
        )

    def on_click(self, event: Click) -> None:
        """A click chooses a run, a second one opens it."""
        index = self.first + event.y - 2
        if event.y < 2 or index >= len(self.view.shown):
            return
        was_chosen = index == self.cursor
        self.cursor = index
        if was_chosen:
            self.post_message(self.Opened())


class RunFacts(Canvas, drawn=("row",)):
    """All that is known of the chosen run."""

    row: reactive[RunRow | None] = reactive(None, repaint=False)

    def rows(self, width: int, height: int) -> list[Row]:
        if self.row is None:
            return []
        inner = width - 2
        title = shorten(self.row.run.name, inner - 4)
        drawn = [title_row("", title, [], inner, False), *runs.facts(self.row, inner)]
        return [[(" ", ""), *row] for row in drawn[:height]]
