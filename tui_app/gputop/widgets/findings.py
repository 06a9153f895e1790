"""What is wrong and what the fix wins back, one line a finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.binding import BindingType
from textual.message import Message
from textual.reactive import reactive

from gputop import palette
from gputop.actions import of_panel
from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.render.rows import Row, left, right, row_width, say, shorten, spread, wrap
from gputop.widgets.scrolling import ScrollingPanel
from gputop_analysis.overview import JUDGED_AFTER
from gputop_analysis.win import win_of

if TYPE_CHECKING:
    from gputop_analysis.model import Finding
    from gputop_analysis.win import Win


_KEY: Row = [("w", "accent")]
MOST_ROWS = 10
"""Rows of a finding at most: beyond that the page of its evidence says it better."""
ID_CELLS = 8
"""Cells of a finding's mark and id, left of what is told of it."""
WON_CELLS = 15
"""Cells of ``−20.1 ms a step``."""
ONE_LINE_FROM = 96
"""Cells from which on a finding and what it wins stand in one line."""


def draw(
    snapshot: Snapshot, width: int, height: int, first: int = 0, cursor: int | None = None
) -> list[Row]:
    """The findings as ranked, ``first`` of them scrolled away, that at ``cursor`` marked."""
    if not snapshot.findings:
        return say(_nothing(snapshot), width)
    drawn = blocks(snapshot, width, height, first, cursor)
    return [row for _, rows in drawn for row in rows]


def blocks(
    snapshot: Snapshot, width: int, height: int, first: int = 0, cursor: int | None = None
) -> list[tuple[int, list[Row]]]:
    """Place in the list and rows of each finding that is shown; with room a gap between two."""
    each = rows_each(len(snapshot.findings), width, height)
    shown = list(enumerate(snapshot.findings))[first : first + max(height // each, 1)]
    if each == 1:
        return _lines(shown, width, height, cursor)
    wins = [win_of(snapshot.summary, finding) for _, finding in shown]
    told = [Told.of(finding, win, width) for (_, finding), win in zip(shown, wins, strict=True)]
    drawn = [
        (index, block(finding, told_, width, rows, index == cursor))
        for (index, finding), told_, rows in zip(
            shown, told, shares(told, each, height), strict=True
        )
    ]
    if sum(len(rows) + 1 for _, rows in drawn) <= height + 1:
        for _, rows in drawn[:-1]:
            rows.append([])
    return drawn


def _lines(
    shown: Sequence[tuple[int, Finding]], width: int, height: int, cursor: int | None
) -> list[tuple[int, list[Row]]]:
    """A line a finding; rows that are left over take what of the first titles was cut."""
    left_over = height - len(shown)
    drawn: list[tuple[int, list[Row]]] = []
    for index, finding in shown:
        rows = line(finding, width, index == cursor, rows=1 + max(left_over, 0))
        left_over -= len(rows) - 1
        drawn.append((index, rows))
    return drawn


def rows_each(count: int, width: int, height: int) -> int:
    """Rows of a finding: one if wide or without room, else title and worth, else the fix too."""
    if height < 2 * min(count, 2) or (width >= ONE_LINE_FROM and height < 4 * count):
        return 1
    return max(2, min(height // count, MOST_ROWS))


class Told(NamedTuple):
    """What is told of a finding, in lines that fit beside its id."""

    title: list[str]
    worth: Row
    fix: list[str]
    proof: list[str]

    @classmethod
    def of(cls, finding: Finding, win: Win | None, width: int) -> Told:
        """In a panel of ``width`` cells."""
        room = width - ID_CELLS
        fix = wrap(f"fix: {finding.fix}", room) if finding.fix else []
        proof = wrap(f"why: {finding.evidence}", room) if finding.evidence else []
        return cls(wrap(finding.title, room), worth_row(finding, win, room), fix, proof)

    @property
    def head_rows(self) -> int:
        """Rows of the title and of what the fix wins."""
        return len(self.title) + bool(self.worth)


def shares(findings: Sequence[Told], each: int, height: int) -> list[int]:
    """Rows of each finding of ``height``: at first at most ``each`` for its title and what it wins;
    what is left goes to the fixes, the first one's before the others', then to the proofs.
    """
    rows = [min(told.head_rows, each) for told in findings]
    left_over = height - sum(rows)
    heads = [told.head_rows for told in findings]
    fixes = [told.head_rows + len(told.fix) for told in findings]
    proofs = [told.head_rows + len(told.fix) + len(told.proof) for told in findings]
    gaps = len(findings) - 1
    for wanted, spared in ((heads, 0), (fixes, 0), (proofs, gaps)):
        for index, rows_wanted in enumerate(wanted):
            more = min(min(rows_wanted, MOST_ROWS) - rows[index], left_over - spared)
            rows[index] += max(more, 0)
            left_over -= max(more, 0)
    return rows


def block(finding: Finding, told: Told, width: int, rows: int, chosen: bool = False) -> list[Row]:
    """A finding in ``rows`` rows: its title, what it wins, the fix, and the proof with room."""
    mark, ground = palette.SEVERITY[finding.severity], "/cursor" if chosen else ""
    start: Row = [(f"{mark.glyph} ", f"bold {mark.style}{ground}")]
    start += [(left(finding.id, ID_CELLS - 2), mark.style + ground)]
    indent: Row = [(" " * ID_CELLS, "text" + ground)]
    room = width - ID_CELLS
    titles = _cut(told.title, max(rows - bool(told.worth), 1), room)
    result: list[Row] = []
    for index, text in enumerate(titles):
        result.append([*(start if index == 0 else indent), (text, "text" + ground)])
    if told.worth and len(result) < rows:
        result.append([*indent, *((text, style + ground) for text, style in told.worth)])
    for lines, style in ((told.fix, "text"), (told.proof, "muted")):
        shown = _cut(lines, rows - len(result), room)
        result += [[*indent, (line, style + ground)] for line in shown]
    if chosen:
        result = [[*row, (" " * max(width - row_width(row), 0), "text/cursor")] for row in result]
    return result


def _cut(lines: Sequence[str], rows: int, room: int) -> list[str]:
    """Lines in at most so many rows; what does not fit ends the last of them in dots."""
    if rows < 1 or not lines:
        return []
    return [*lines[: rows - 1], shorten(" ".join(lines[rows - 1 :]), room)][: len(lines)]


def worth_row(finding: Finding, win: Win | None, width: int) -> Row:
    """``−5.0 ms a step  1.31x  saves 7 s · $0.07``, as much as fits."""
    if not finding.recoverable_ms_per_step:
        return []
    row: Row = [(_won(finding.recoverable_ms_per_step), "good")]
    parts: list[Row] = []
    if win is not None and win.factor >= 1.005:
        parts.append([(f"  {win.factor:.2f}x", "bold good")])
    if finding.recoverable_hours is not None:
        saved: Row = [("  saves ", "muted")]
        saved.append((numbers.span(finding.recoverable_hours * 3600), "text"))
        parts.append(saved)
    if finding.recoverable_usd is not None:
        parts.append([(" · ", "muted"), (f"${finding.recoverable_usd:,.2f}", "text")])
    for part in parts:
        if row_width(row) + row_width(part) <= width:
            row += part
    return row


def _won(ms: float) -> str:
    return f"−{numbers.duration_ms(ms)} a step"


def _nothing(snapshot: Snapshot) -> str:
    if snapshot.ended:
        return "Nothing found."
    if snapshot.summary.steps >= JUDGED_AFTER:
        return "Nothing found so far."
    return f"Judged once {JUDGED_AFTER} steps have been seen."


def line(finding: Finding, width: int, chosen: bool = False, rows: int = 1) -> list[Row]:
    """One finding: severity, title, and what it costs; a title that is longer goes on in further
    rows, as far as there are ``rows``.
    """
    mark = palette.SEVERITY[finding.severity]
    ground = "/cursor" if chosen else ""
    start: Row = [(f"{mark.glyph} {left(mark.word, 9)}", mark.style + ground)]
    if width >= 96:
        start += [(left(finding.id, 6), "muted" + ground)]
    end = [(text, style + ground) for text, style in cost(finding, width)]
    lead = row_width(start)
    room = width - lead - row_width(end) - 2
    titles = _cut(wrap(finding.title, room), rows, room)
    start += [(titles[0], "text" + ground)]
    gap = width - row_width(start) - row_width(end)
    first = [*start, (" " * gap, "text" + ground), *end] if gap > 0 else spread(start, end, width)
    return [first, *([(left(" " * lead + more, width), "text" + ground)] for more in titles[1:])]


def cost(finding: Finding, width: int) -> Row:
    """Recoverable time in fixed columns: of a step; hours over the rest and known rent."""
    if finding.recoverable_ms_per_step is None:
        return []
    row: Row = [(right(_won(finding.recoverable_ms_per_step), WON_CELLS), "good")]
    if width >= 70 and finding.recoverable_hours is not None:
        row += [(right(numbers.span(finding.recoverable_hours * 3600), 9), "text")]
    if width >= 96 and finding.recoverable_usd is not None:
        row += [(right(f"${finding.recoverable_usd:,.2f}", 10), "text")]
    return row


class Findings(ScrollingPanel, drawn=("only_worst",)):
    """Panel 5."""

    BINDINGS: ClassVar[list[BindingType]] = [*of_panel("findings")]
    only_worst: reactive[bool] = reactive(False, repaint=False)
    """Whether those of severity ``info`` are left out."""

    class Chosen(Message):
        """A finding was opened."""

        def __init__(self, finding: Finding):
            super().__init__()
            self.finding = finding

    def shown(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """Findings that are listed; all of them where only those of ``info`` are there."""
        if not self.only_worst:
            return snapshot.findings
        return tuple(f for f in snapshot.findings if f.severity != "info") or snapshot.findings

    def item_count(self, snapshot: Snapshot) -> int:
        return len(self.shown(snapshot))

    def clicked(self, x: int, y: int) -> None:
        """Open the finding under the pointer; each takes as many rows as its words."""
        if self.snapshot is None or not self.snapshot.findings:
            return
        shown = self.snapshot._replace(findings=self.shown(self.snapshot))
        for index, rows in blocks(shown, *self.inside(*self.size), self.first):
            if y < len(rows):
                self.cursor = index
                self.choose()
                return
            y -= len(rows)

    def visible_items(self) -> int:
        width, height = self.inside(*self.size)
        count = self.item_count(self.snapshot) if self.snapshot else 0
        if count:
            return max(1, height // rows_each(count, width, height))
        return max(1, height)

    def note(self, snapshot: Snapshot) -> Row:
        if not snapshot.findings:
            return []
        shown, count = self.item_count(snapshot), len(snapshot.findings)
        if shown < count:
            return [(f"{shown} of {count}: above info  ", "accent"), *_KEY, (" all", "muted")]
        if not self.has_focus:
            return [("1 finding" if count == 1 else f"{count}, by what they win", "muted")]
        row: Row = [("enter: evidence and fix", "muted")]
        if any(finding.severity == "info" for finding in snapshot.findings) and count > 2:
            row += [("  ", ""), *_KEY, (" worst", "muted")]
        return row

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        shown = snapshot._replace(findings=self.shown(snapshot))
        return draw(shown, width, height, self.first, self.cursor if self.has_focus else None)

    def action_worst(self) -> None:
        """Leave out those of severity ``info`` and go to the first; again: all of them."""
        self.only_worst = not self.only_worst
        self.cursor = 0

    def choose(self) -> None:
        """Open the finding under the cursor."""
        if self.snapshot and self.snapshot.findings:
            self.post_message(self.Chosen(self.shown(self.snapshot)[self.cursor]))

    def copy_text(self, snapshot: Snapshot) -> str:
        if snapshot.findings:
            return as_text(self.shown(snapshot)[self.cursor])
        return ""


def as_text(finding: Finding) -> str:
    """A finding as people paste it into an issue."""
    lines = [
        f"{finding.id} {finding.severity}: {finding.title}",
        f"evidence: {finding.evidence}",
        f"fix: {finding.fix}",
    ]
    if finding.site:
        lines.append(f"at: {finding.site}")
    return "\n".join(lines)
