"""What is wrong and what the fix wins back, one line a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

from gputop import palette
from gputop.feed.snapshot import Snapshot
from gputop.render import numbers
from gputop.render.rows import Row, left, right, row_width, say, shorten, spread
from gputop.widgets.scrolling import ScrollingPanel
from gputop_analysis.overview import JUDGED_AFTER

if TYPE_CHECKING:
    from gputop_analysis.model import Finding


def draw(
    snapshot: Snapshot, width: int, height: int, first: int = 0, cursor: int | None = None
) -> list[Row]:
    """The findings as ranked by the analysis, ``first`` of them scrolled away, the one at ``cursor`` marked."""
    if not snapshot.findings:
        return say(_nothing(snapshot), width)
    shown = list(enumerate(snapshot.findings))[first : first + height]
    return [line(finding, width, index == cursor) for index, finding in shown]


def _nothing(snapshot: Snapshot) -> str:
    if snapshot.ended:
        return "Nothing found."
    if snapshot.summary.steps >= JUDGED_AFTER:
        return "Nothing found so far."
    return f"Judged once {JUDGED_AFTER} steps have been seen."


def line(finding: Finding, width: int, chosen: bool = False) -> Row:
    """One finding: severity, title, and what it costs."""
    mark = palette.SEVERITY[finding.severity]
    ground = "/cursor" if chosen else ""
    start: Row = [(f"{mark.glyph} {left(mark.word, 9)}", mark.style + ground)]
    if width >= 96:
        start += [(left(finding.id, 6), "muted" + ground)]
    end = [(text, style + ground) for text, style in cost(finding, width)]
    room = width - row_width(start) - row_width(end) - 2
    start += [(shorten(finding.title, room), "text" + ground)]
    gap = width - row_width(start) - row_width(end)
    return [*start, (" " * gap, "text" + ground), *end] if gap > 0 else spread(start, end, width)


def cost(finding: Finding, width: int) -> Row:
    """Recoverable time in fixed columns: milliseconds a step; hours over the rest and their rent where known."""
    if finding.recoverable_ms_per_step is None:
        return []
    row: Row = [
        (right(numbers.ms(finding.recoverable_ms_per_step), 7), "text"),
        (" ms/step", "muted"),
    ]
    if width >= 70 and finding.recoverable_hours is not None:
        row += [(right(numbers.span(finding.recoverable_hours * 3600), 9), "text")]
    if width >= 96 and finding.recoverable_usd is not None:
        row += [(right(f"${finding.recoverable_usd:,.2f}", 10), "text")]
    return row


class Findings(ScrollingPanel):
    """Panel 5."""

    class Chosen(Message):
        """A finding was opened."""

        def __init__(self, finding: Finding):
            super().__init__()
            self.finding = finding

    def item_count(self, snapshot: Snapshot) -> int:
        return len(snapshot.findings)

    def note(self, snapshot: Snapshot) -> Row:
        if not snapshot.findings:
            return []
        text = "enter: evidence and fix" if self.has_focus else f"{len(snapshot.findings)} found"
        return [(text, "muted")]

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return draw(snapshot, width, height, self.first, self.cursor if self.has_focus else None)

    def choose(self) -> None:
        """Open the finding under the cursor."""
        if self.snapshot and self.snapshot.findings:
            self.post_message(self.Chosen(self.snapshot.findings[self.cursor]))

    def copy_text(self, snapshot: Snapshot) -> str:
        return as_text(snapshot.findings[self.cursor]) if snapshot.findings else ""


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
