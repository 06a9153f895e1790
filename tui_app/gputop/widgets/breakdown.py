"""Where a step's time goes: stacked over the recent steps, and one line a phase."""

from __future__ import annotations

from gputop import palette
from gputop.feed.snapshot import RecentSteps, Snapshot
from gputop.render import numbers
from gputop.render.bars import bar, stacked_bar, stacked_columns
from gputop.render.rows import Row, beside, left, right, say
from gputop.widgets.panel import Panel
from gputop_analysis.text import counted

STYLES = [phase.name for phase in palette.PHASES]
LETTERS = [phase.letter for phase in palette.PHASES]
TABLE_WIDTH = 46
CHART_MIN = 24
AXIS = 8


def draw(snapshot: Snapshot, width: int, height: int, mono: bool = False) -> list[Row]:
    """The chart and the table side by side; without room, the table alone; with very little, one stacked bar."""
    phases = snapshot.summary.phases
    if not phases or not snapshot.recent.phases_ms:
        return _waiting(snapshot, width)
    if height <= 2:
        return [
            stacked_bar([p.mean_ms for p in phases], *_looks(snapshot), width, mono),
            *legend(snapshot, width),
        ][:height]
    if width < TABLE_WIDTH + CHART_MIN:
        return table(snapshot, width, height, mono)
    table_width = min(64, max(TABLE_WIDTH, width * 2 // 5))
    chart_width = width - table_width - 2
    return beside(
        chart(snapshot.recent, chart_width, height, mono),
        chart_width,
        table(snapshot, table_width, height, mono),
    )


def _waiting(snapshot: Snapshot, width: int) -> list[Row]:
    if snapshot.ended:
        return say("The run ended before its first training step was seen.", width)
    return say("Waiting for the first training step.", width)


def _looks(snapshot: Snapshot) -> tuple[list[str], list[str]]:
    looks = [palette.PHASE[p.name] for p in snapshot.summary.phases]
    return [look.name for look in looks], [look.letter for look in looks]


def legend(snapshot: Snapshot, width: int) -> list[Row]:
    """One line that names the phases of the stacked bar, as many as fit."""
    row: Row = []
    used = 0
    for phase in sorted(snapshot.summary.phases, key=lambda p: -p.share):
        text = f" {phase.name} {numbers.percent(phase.share)}  "
        if phase.share <= 0 or used + len(text) + 1 > width:
            continue
        used += len(text) + 1
        row += [("■", phase.name), (text, "muted")]
    return [row]


def chart(recent: RecentSteps, width: int, height: int, mono: bool = False) -> list[Row]:
    """Stacked columns of the recent steps with the scale at the left, the latest step at the right edge."""
    columns = recent.phases_ms[-(width - AXIS) :]
    top = numbers.nice_ceiling(_typical_high([sum(c) for c in columns]) * 1.08)
    rows = stacked_columns(columns, STYLES, LETTERS, height, top, mono=mono)
    missing = width - AXIS - len(columns)
    result = []
    for y, row in enumerate(rows):
        result.append(
            [(right(_tick(y, height, top), AXIS - 1) + " ", "muted"), *row, (" " * missing, "")]
        )
    return result


def _tick(y: int, height: int, top: float) -> str:
    if y == 0:
        return numbers.duration_ms(top)
    if height >= 6 and height % 2 == 0 and y == height // 2:
        return numbers.duration_ms(top / 2)
    if y == height - 1 and height >= 4:
        return "0"
    return ""


def _typical_high(totals: list[float]) -> float:
    """The 95th percentile of the column heights: a single slow column does not flatten the others."""
    ordered = sorted(totals)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else 1.0


def table(snapshot: Snapshot, width: int, height: int, mono: bool = False) -> list[Row]:
    """Phase, mean, p50, p95, share and a bar. Phases that take no time are left out, the order never changes."""
    wide = width >= 54
    names = (["mean ms"] if wide else []) + ["p50 ms", "p95 ms"]
    head = f"{'':2}{'phase':<10}" + "".join(right(name, 9) for name in names) + right("share", 7)
    rows: list[Row] = [[(head, "muted")]]
    digits = numbers.digits_for(max(phase.p95_ms for phase in snapshot.summary.phases))
    shown = [p for p in snapshot.summary.phases if p.mean_ms > 0 or p.share > 0]
    if len(shown) + 1 > height:
        keep = sorted(shown, key=lambda p: -p.share)[: height - 1]
        shown = [p for p in shown if p in keep]
    for phase in shown:
        figures = [phase.mean_ms] if wide else []
        figures += [phase.p50_ms, phase.p95_ms]
        text = "".join(right(numbers.ms_column(v, digits), 9) for v in figures) + right(
            numbers.percent(phase.share), 7
        )
        letter = palette.PHASE[phase.name].letter if mono else "█"
        rows.append(
            [(letter + " ", phase.name), (left(phase.name, 10), "text"), (text, "text"), ("  ", "")]
        )
        rows[-1] += bar(phase.share, width - 2 - 10 - len(text) - 2, phase.name)
    return rows


class Breakdown(Panel):
    """Panel 1."""

    def note(self, snapshot: Snapshot) -> Row:
        run = snapshot.summary
        if not numbers.known(run.step_time_p50_ms):
            return []
        each = snapshot.recent.steps_per_column
        column = counted(each, "step")
        p50, p95 = (
            numbers.duration_ms(run.step_time_p50_ms),
            numbers.duration_ms(run.step_time_p95_ms),
        )
        row: Row = [
            ("step ", "muted"),
            (p50, "text"),
            (" p50  ", "muted"),
            (p95, "text"),
            (" p95", "muted"),
        ]
        if self.size.width >= 76:
            row.append((f"   one column: {column}", "muted"))
        if self.size.width >= 110 and snapshot.window:
            row.insert(0, (f"{snapshot.window}: ", "muted"))
        return row

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return draw(snapshot, width, height, self.mono)
