"""Ranks against each other: figures and recent steps of each; one rank alone gets a chart of its step times."""

from __future__ import annotations

from statistics import median

from gputop import palette
from gputop.feed.snapshot import RecentSteps, Snapshot
from gputop.render import numbers
from gputop.render.bars import LOWER
from gputop.render.rows import Row, left, right
from gputop.widgets.scrolling import ScrollingPanel
from gputop_analysis.model import RankSummary

AXIS = 8


def draw(
    snapshot: Snapshot, width: int, height: int, first: int = 0, cursor: int | None = None, mono: bool = False
) -> list[Row]:
    """The grid, ``first`` ranks scrolled away, the rank at ``cursor`` marked."""
    ranks = snapshot.summary.ranks
    if not ranks:
        return [[("Ranks appear with their first training step.", "muted")]]
    if len(ranks) == 1:
        return strip_chart(snapshot.recent, width, height, mono)
    marked = {f.rank: f.severity for f in reversed(snapshot.findings) if f.rank is not None}
    rows: list[Row] = [[(left("rank", 7) + right("step", 8) + right("own", 8) + right("wait", 8) + "  ms", "muted")]]
    for index, rank in enumerate(ranks[first : first + height - 1], first):
        row = _figures(rank, marked.get(rank.rank), index == cursor)
        cells = width - sum(len(text) for text, _ in row) - 2
        rows.append([*row, ("  ", ""), *grid_row(snapshot.recent, rank.rank, cells, mono)])
    return rows


def _figures(rank: RankSummary, severity: str | None, chosen: bool) -> Row:
    ground = "/cursor" if chosen else ""
    glyph = palette.SEVERITY[severity].glyph if severity else " " if rank.alive else "✖"
    own = rank.step_time_p50_ms - rank.wait_mean_ms
    numbers_text = right(numbers.ms(rank.step_time_p50_ms), 8) + right(numbers.ms(own), 8)
    return [
        (right(str(rank.rank), 4) + " ", "text" + ground),
        (glyph + " ", (severity or ("text" if rank.alive else "critical")) + ground),
        (numbers_text, "text" + ground),
        (right(numbers.ms(rank.wait_mean_ms), 8), "muted" + ground),
    ]


def grid_row(recent: RecentSteps, rank: int, width: int, mono: bool = False) -> Row:
    """The last columns of one rank, coloured by step time against the median of all."""
    row: Row = []
    for wall in recent.rank_wall_ms.get(rank, ())[-max(width, 0) :] if width > 0 else ():
        if wall != wall:
            cell = ("·", "track")
        else:
            style, glyph = palette.heat(wall / recent.median_ms)
            cell = (glyph if mono else "▇", style)
        if row and row[-1][1] == cell[1]:
            row[-1] = (row[-1][0] + cell[0], cell[1])
        else:
            row.append(cell)
    return row


def strip_chart(recent: RecentSteps, width: int, height: int, mono: bool = False) -> list[Row]:
    """Step time of the only rank over the recent steps, one column each, coloured against the median."""
    walls = next(iter(recent.rank_wall_ms.values()), ())[-(width - AXIS) :]
    measured = [w for w in walls if w == w]
    if not measured:
        return [[("No step in the last minutes.", "muted")]]
    middle = median(measured)
    top = numbers.nice_ceiling(min(max(measured), 3 * middle) * 1.02)
    rows: list[Row] = []
    for y in range(height):
        label = numbers.duration_ms(top) if y == 0 else "0" if y == height - 1 and height > 2 else ""
        row: Row = [(right(label, AXIS - 1) + " ", "muted")]
        for wall in walls:
            units = wall / top * height - (height - 1 - y) if wall == wall else 0.0
            clipped = y == 0 and wall > top * 1.001
            glyph = "▲" if clipped else LOWER[min(8, max(0, round(units * 8)))]
            style = palette.heat(wall / middle)[0] if wall == wall else ""
            row.append((glyph, style))
        rows.append(row)
    return rows


class Ranks(ScrollingPanel):
    """Panel 3."""

    number = "3"
    title = "Ranks"

    def item_count(self, snapshot: Snapshot) -> int:
        ranks = len(snapshot.summary.ranks)
        return ranks if ranks > 1 else 0

    def visible_items(self) -> int:
        return max(1, self.size.height - 2)

    def note(self, snapshot: Snapshot) -> str:
        if len(snapshot.summary.ranks) > 1:
            return "▇ colour: step time against the median"
        return "step time, coloured against the median"

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return draw(snapshot, width, height, self.first, self.cursor if self.has_focus else None, self.mono)

    def copy_text(self, snapshot: Snapshot) -> str:
        if not self.item_count(snapshot):
            return super().copy_text(snapshot)
        rank = snapshot.summary.ranks[self.cursor]
        phases = ", ".join(f"{name} {value:.3f}" for name, value in rank.phases_mean_ms.items() if value > 0)
        return f"rank {rank.rank} on {rank.host}: step {rank.step_time_p50_ms:.3f} ms p50; mean ms: {phases}"
