"""The three panes of the strategy screen."""

from __future__ import annotations

from textual.geometry import Size
from textual.reactive import reactive

from gputop import short_words
from gputop.feed.planning import ENTRIES, Ask, Entry, Planned
from gputop.feed.run_base import RunBase
from gputop.render import plan
from gputop.render.rows import Row, row_text, row_width, say, shorten, spread, wrap
from gputop.widgets.canvas import Canvas
from gputop.widgets.panel import title_row
from gputop_analysis.planner.choices import Choice
from gputop_analysis.text import step_time

MOST_MARKED = 4
HEAD_ROWS = 2
"""Of the title: what is planned, and what a line means."""
ROWS_FOR_NOTICE = 24
"""Rows of a terminal from which on a notice may have more than one."""


class PlanTitle(Canvas):
    """Docked on top: what is planned, and what the line at the cursor means."""

    _shown: tuple[Ask, str, str, str] | None = None
    _fitted = HEAD_ROWS

    def show(self, ask: Ask, source: str, meaning: str, notice: str = "") -> None:
        """Another question, or another line of it; ``notice`` stays below."""
        self._shown = ask, source, meaning, notice
        self.fit(self.app.size)
        self.redraw()

    def fit(self, size: Size) -> None:
        """Be as high as the words are at a width, or of three lines where rows are few; laid out
        anew only where that has changed.
        """
        if self._shown is None:
            return
        rows = HEAD_ROWS + len(notice_rows(self._shown[-1], size.width))
        if size.height < ROWS_FOR_NOTICE:
            rows = min(rows, HEAD_ROWS + 1)
        if rows != self._fitted:
            self._fitted = rows
            self.styles.height = rows

    def rows(self, width: int, height: int) -> list[Row]:
        if self._shown is None:
            return []
        ask, source, meaning, notice = self._shown
        start: Row = [(" gputop plan", "bold accent"), ("   " + ask.model.name, "bold text")]
        end: Row = [(source + " ", "accent")] if source else []
        room = width - row_width(start) - row_width(end) - 3
        start += [
            (
                "   "
                + shorten(
                    f"{ask.global_batch} x {ask.seq} tokens on {ask.gpus} x {ask.gpu}", max(room, 0)
                ),
                "text",
            )
        ]
        lines: list[Row] = [
            spread(start, end, width),
            [(" " + shorten(meaning, width - 2), "muted")],
        ]
        return [*lines, *notice_rows(notice, width, height - HEAD_ROWS)]


def notice_rows(notice: str, width: int, height: int = 99) -> list[Row]:
    """The words below the title, in one line with dots where there is no room for more; none for
    no notice.
    """
    if not notice:
        return []
    if height < 2:
        return [[(" ⚠ ", "medium"), (shorten(notice, width - 4), "medium")]]
    rows: list[Row] = []
    for line in wrap(notice, width - 4):
        rows.append([("   " if rows else " ⚠ ", "medium"), (line, "medium")])
    return rows


class PlanForm(Canvas, can_focus=True, drawn=("ask", "cursor", "typed")):
    """The question."""

    ask: reactive[Ask | None] = reactive(None, repaint=False)
    cursor: reactive[int] = reactive(5, repaint=False)
    typed: reactive[str | None] = reactive(None, repaint=False)

    @property
    def entry(self) -> Entry:
        """The line at the cursor."""
        return ENTRIES[self.cursor]

    def move(self, step: int) -> None:
        """Move the cursor."""
        self.cursor = min(max(self.cursor + step, 0), len(ENTRIES) - 1)

    def rows(self, width: int, height: int) -> list[Row]:
        if self.ask is None:
            return []
        drawn = plan.form(self.ask, self.cursor, width - 2, self.has_focus, self.typed)
        at = self.cursor + len({entry.group for entry in ENTRIES[: self.cursor + 1]})
        room = height - 1
        first = max(0, min(at - room // 2, len(drawn) - room))
        head = title_row("", "Job and split", [], width - 2, self.has_focus)
        return [[(" ", ""), *row] for row in (head, *drawn[first : first + room])]


_MORE = " … ? all"


class PlanTable(Canvas, can_focus=True, drawn=("planned", "cursor", "marked")):
    """The ranked configurations, with a cursor and up to four marks."""

    planned: reactive[Planned | None] = reactive(None, repaint=False)
    cursor: reactive[int] = reactive(0, repaint=False)
    marked: reactive[tuple[int, ...]] = reactive((), repaint=False)
    base: RunBase | None = None
    first = 0
    _room = 0
    """Configurations that had room when it was drawn last."""

    @property
    def chosen(self) -> Choice | None:
        """The configuration at the cursor."""
        choices = self.planned.choices if self.planned else ()
        if choices:
            return choices[min(self.cursor, len(choices) - 1)]
        return None

    @property
    def compared(self) -> list[Choice]:
        """The marked ones in the order of the marks."""
        choices = self.planned.choices if self.planned is not None else ()
        return [choices[index] for index in self.marked if index < len(choices)]

    def move(self, step: int) -> None:
        """Move the cursor."""
        count = len(self.planned.choices) if self.planned else 0
        self.cursor = min(max(self.cursor + step, 0), max(count - 1, 0))

    def mark(self) -> None:
        """Mark or unmark what is at the cursor; the oldest mark goes where there are four."""
        if self.chosen is None:
            return
        at = 0
        if self.planned:
            at = min(self.cursor, len(self.planned.choices) - 1)
        remaining = tuple(index for index in self.marked if index != at)
        if len(remaining) < len(self.marked):
            self.marked = remaining
        else:
            self.marked = (*remaining, at)[-MOST_MARKED:]

    def rows(self, width: int, height: int) -> list[Row]:
        inner, planned = width - 2, self.planned
        note: Row = []
        if planned is not None and planned.choices:
            if planned.usd_per_gpu_hour is not None:
                unknown = ""
            else:
                unknown = "no rent known, ranked by time · "
            fit = f"{planned.fitting:,} of {planned.searched:,} fit"
            if not planned.fitting:
                fit = f"none surely fits, {len(planned.choices):,} may"
            note = [(f"{unknown}{fit}", "muted")]
        head = title_row("", "Strategies", note, inner, self.has_focus)
        if planned is None:
            return [[(" ", ""), *row] for row in (head, *say("Planning.", inner))]
        if planned.problem:
            return [[(" ", ""), *row] for row in (head, *say("✖ " + planned.problem, inner))]
        foot = min(max(height // 8, 1), 3)
        room = height - 2 - foot
        cursor = min(self.cursor, len(planned.choices) - 1)
        self._scroll(cursor, room, len(planned.choices))
        here = cursor if self.has_focus else None
        base_s = self.base.step_s if self.base else 0.0
        drawn = plan.table(
            planned,
            inner,
            height=room + 1,
            first=self.first,
            cursor=here,
            marked=self.marked,
            base_s=base_s,
        )
        drawn += [[]] * (room + 1 - len(drawn))
        shown_text = "\n".join(map(row_text, drawn))
        return [[(" ", ""), *row] for row in (head, *drawn, *words_of(shown_text, inner, foot))]

    def _scroll(self, cursor: int, room: int, count: int) -> None:
        """Keep the cursor in view; a larger pane shows what a smaller one had scrolled away."""
        first = self.first - max(room - self._room, 0)
        self._room = room
        self.first = max(min(max(first, cursor - room + 1), cursor, count - room), 0)


def words_of(seen: str, width: int, height: int) -> list[Row]:
    """What the short words in ``seen`` mean, in at most ``height`` rows."""
    lines = wrap(" · ".join(short_words.meanings(seen)), width)
    if len(lines) > height:
        lines = wrap(" ".join(lines), width - len(_MORE))[:height]
        lines[-1] = lines[-1].rstrip(" ·") + _MORE
    return [[(line, "muted")] for line in lines]


class PlanParts(Canvas):
    """Where the time of the chosen or marked configurations goes, and why one and not another."""

    _shown: tuple[Planned, Choice, list[Choice]] | None = None

    def show(self, planned: Planned | None, chosen: Choice | None, marked: list[Choice]) -> None:
        """Other configurations."""
        if planned is None or chosen is None:
            self._shown = None
        else:
            self._shown = (planned, chosen, marked)
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        if self._shown is None:
            return []
        planned, chosen, marked = self._shown
        inner = width - 2
        several = len(marked) > 1
        shown = marked if several else [chosen]
        low, high = chosen.interval_s
        note: Row = [(f"{step_time(low)} to {step_time(high)} in 80 % of cases", "muted")]
        title = "Side by side" if several else chosen.name
        drawn = [
            title_row("", shorten(title, inner - 4), [] if several else note, inner, False),
            *plan.bars(shown, inner, self.mono),
        ]
        drawn += plan.reasons(planned, chosen, marked, inner)
        return [[(" ", ""), *row] for row in drawn[:height]]
