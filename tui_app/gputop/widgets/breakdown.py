"""Where a step's time goes: stacked over the last minutes with names inside, a line a phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputop.feed.snapshot import Snapshot
from gputop.feed.starting import Starting
from gputop.render import numbers
from gputop.render.bars import bar, stacked_bar
from gputop.render.rows import Row, beside, hanging, left, right, say, wrap
from gputop.widgets.panel import Panel
from gputop.widgets.starting import checklist
from gputop.widgets.step_chart import PARTS, chart
from gputop_analysis.step_parts import parts_of
from gputop_analysis.win import mean_step_ms

if TYPE_CHECKING:
    from gputop_analysis.model import PhaseStats

CHART_MIN = 24
CHART_ROWS = 5
"""Rows from which on a panel of middle width shows the chart alone: it has its names in it."""
WITH_BOTH = 128
UNTOLD = "not known: how long ranks wait inside backward is read at some steps only"
"""Why a part has a mean and no quantiles."""
WHAT_CAN_BE_DONE = (
    "wait: gputop reads it anew all the time, and one that has just begun may not be whole yet",
    "copy it again where it is a copy: all files of its directory",
    "R lists the other runs",
)
"""Where a record cannot be read."""


def draw(snapshot: Snapshot, width: int, height: int, mono: bool = False) -> list[Row]:
    """The chart with the table beside it, or one of them; with very little room a bar."""
    if not snapshot.summary.phases or not snapshot.timeline.phases_ms:
        return _waiting(snapshot, width, height)
    parts = parts_of(snapshot.summary)
    if height <= 2:
        looks = [PARTS[part.name] for part in parts]
        styles, letters = [look.style for look in looks], [look.letter for look in looks]
        values = [part.mean_ms for part in parts]
        return [stacked_bar(values, styles, letters, width, mono), *legend(parts, width)][:height]
    if width >= WITH_BOTH:
        table_width = min(64, width * 2 // 5)
        chart_width = width - table_width - 2
        drawn = chart(snapshot, chart_width, height, mono)
        return beside(drawn, chart_width, table(snapshot, table_width, height, mono))
    if height >= CHART_ROWS and width >= CHART_MIN:
        return chart(snapshot, width, height, mono)
    return table(snapshot, width, height, mono)


def _waiting(snapshot: Snapshot, width: int, height: int) -> list[Row]:
    """The checklist of the start, while there is no step."""
    rows: list[Row] = []
    if snapshot.ended:
        rows = say("The run ended before its first training step was seen.", width)
    start = snapshot.panels.get("breakdown")
    if not isinstance(start, Starting):
        return rows or say("Waiting for the first training step.", width)
    return rows + checklist(start, snapshot.summary.now_ns, width, height - len(rows))


def legend(parts: Sequence[PhaseStats], width: int) -> list[Row]:
    """One line that names the parts of the stacked bar, as many as fit."""
    row: Row = []
    used = 0
    for part in sorted(parts, key=lambda one: -one.share):
        text = f" {part.name} {numbers.percent(part.share)}  "
        if part.share <= 0 or used + len(text) + 1 > width:
            continue
        used += len(text) + 1
        row += [("■", part.name), (text, "muted")]
    return [row]


def table(snapshot: Snapshot, width: int, height: int, mono: bool = False) -> list[Row]:
    """Phase, mean, p50, p95, share and a bar, without empty phases, in a fixed order."""
    wide = width >= 54
    names = (["mean ms"] if wide else []) + ["p50 ms", "p95 ms"]
    head = f"{'':2}{'phase':<10}" + "".join(right(name, 9) for name in names) + right("share", 7)
    rows: list[Row] = [[(head, "muted")]]
    digits = numbers.digits_for(max(phase.p95_ms for phase in snapshot.summary.phases))
    shown = [p for p in parts_of(snapshot.summary) if p.mean_ms > 0 or p.share > 0]
    if len(shown) + 1 > height:
        keep = sorted(shown, key=lambda p: -p.share)[: height - 1]
        shown = [p for p in shown if p in keep]
    for part in shown:
        figures = [part.mean_ms] if wide else []
        figures += [part.p50_ms, part.p95_ms]
        text = "".join(right(numbers.ms_column(v, digits), 9) for v in figures)
        text += right(numbers.percent(part.share), 7)
        letter = PARTS[part.name].letter if mono else "█"
        row: Row = [(letter + " ", part.name), (left(part.name, 10) + text, "text")]
        rows.append([*row, ("  ", ""), *bar(part.share, width - 2 - 10 - len(text) - 2, part.name)])
    if len(rows) + 1 < height and any(math.isnan(part.p50_ms) for part in shown):
        rows += [[], *say(f"{numbers.NONE} {UNTOLD}", width)]
    return rows[:height]


def unreadable(snapshot: Snapshot, width: int) -> list[Row]:
    """Why nothing of the record could be read, where it lies, and what can be done."""
    why = wrap(f"The record cannot be read: {snapshot.problem}", width - 2)
    rows: list[Row] = [
        [("✖ " if index == 0 else "  ", "critical"), (line, "text")]
        for index, line in enumerate(why)
    ]
    rows += [[(line, "text")] for line in hanging(f"  {snapshot.run_dir}", width)]
    ways = (line for way in WHAT_CAN_BE_DONE for line in hanging(f"· {way}", width))
    return [*rows, [], *([(line, "muted")] for line in ways)]


class Breakdown(Panel):
    """Panel 1."""

    def before_read(self, snapshot: Snapshot, width: int) -> list[Row]:
        """The one panel that says it: five would say the same."""
        if snapshot.unreadable:
            return unreadable(snapshot, width)
        return say("Reading the record.", width)

    def heading(self, snapshot: Snapshot) -> str:
        if isinstance(snapshot.panels.get(self.id or ""), Starting):
            return "Until the first step"
        if snapshot.summary.stands:
            return "Where a step went before the stop"
        return self.title

    def note(self, snapshot: Snapshot) -> Row:
        run, line = snapshot.summary, snapshot.timeline
        if not numbers.known(run.step_time_p50_ms):
            return []
        if len(run.ranks) > 1:
            ranks = f"mean of {len(run.ranks):,} ranks"
        else:
            ranks = ""
        sampled = f"{line.of_ranks} of {len(run.ranks):,} ranks"
        if line.of_ranks < len(run.ranks):
            ranks = sampled
        if self.boxed:
            words = ", ".join(filter(None, (ranks, snapshot.averaged_steps)))
            return [(words, "muted")]
        row: Row = [("step, mean ", "muted"), (numbers.duration_ms(mean_step_ms(run)), "text")]
        row += [("  p95 ", "muted"), (numbers.duration_ms(run.step_time_p95_ms), "text")]
        return row

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return draw(snapshot, width, height, self.mono)
