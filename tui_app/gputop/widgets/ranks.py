"""Ranks against each other: figures and recent steps of each; one rank alone gets a chart of its step times."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from gputop import palette
from gputop.feed.snapshot import RecentSteps, Snapshot
from gputop.render import numbers
from gputop.render.bars import LOWER, apportion
from gputop.render.rows import Row, left, right, row_width, say
from gputop.widgets.scrolling import ScrollingPanel

if TYPE_CHECKING:
    from gputop_analysis.model import RankSummary

AXIS = 8
BAR = 16
PHASE_CELLS = 11
STANDS_OUT = 1.2
"""Times the median of the ranks, from which on a phase of a rank is marked."""
WITH_BARS = 72


def draw(
    snapshot: Snapshot,
    width: int,
    height: int,
    first: int = 0,
    cursor: int | None = None,
    mono: bool = False,
) -> list[Row]:
    """The grid, ``first`` ranks scrolled away, the rank at ``cursor`` marked."""
    ranks = snapshot.summary.ranks
    if not ranks:
        return say("Ranks appear with their first training step.", width)
    if len(ranks) == 1:
        return strip_chart(snapshot.recent, width, height, mono)
    marked = {f.rank: f.severity for f in reversed(snapshot.findings) if f.rank is not None}
    head = left("rank", 7) + right("mean ms", 9) + right("own", 9) + right("wait", 9)
    head += left("  own ━ wait ─", BAR + 2) if width >= WITH_BARS else ""
    rows: list[Row] = [[(head, "muted")]]
    slowest = max(rank.step_time_mean_ms for rank in ranks)
    digits = numbers.digits_for(slowest)
    for index, rank in enumerate(ranks[first : first + height - 1], first):
        row = _figures(
            rank, _mark(rank, marked.get(rank.rank), snapshot.ended), digits, index == cursor
        )
        if width >= WITH_BARS:
            row += [("  ", ""), *split_bar(rank, slowest, BAR)]
        cells = width - row_width(row) - 2
        rows.append([*row, ("  ", ""), *grid_row(snapshot.recent, rank.rank, cells, mono)])
    if height >= 2 * len(ranks) + 5:
        rows += [[], *phase_table(ranks, width)]
    return rows


def _mark(rank: RankSummary, severity: str | None, ended: bool) -> tuple[str, str]:
    """Glyph and style: the worst finding about the rank, or that it is gone while the run goes on."""
    if severity:
        return palette.SEVERITY[severity].glyph, severity
    return (" ", "text") if rank.alive or ended else ("○", "muted")


def _figures(rank: RankSummary, mark: tuple[str, str], digits: int, chosen: bool) -> Row:
    ground = "/cursor" if chosen else ""
    own = rank.step_time_mean_ms - rank.wait_mean_ms
    texts = [
        right(numbers.ms_column(v, digits), 9)
        for v in (rank.step_time_mean_ms, own, rank.wait_mean_ms)
    ]
    return [
        (right(str(rank.rank), 4) + " ", "text" + ground),
        (mark[0] + " ", mark[1] + ground),
        (texts[0] + texts[1], "text" + ground),
        (texts[2], "muted" + ground),
    ]


def phase_table(ranks: tuple[RankSummary, ...], width: int) -> list[Row]:
    """Mean milliseconds a step of each phase and rank; what is well above the other ranks is marked."""
    room = max((width - 7) // PHASE_CELLS, 1)
    means = {
        p: [rank.phases_mean_ms.get(p, 0.0) for rank in ranks] for p in ranks[0].phases_mean_ms
    }
    names = sorted((p for p in means if max(means[p]) > 0), key=lambda p: -max(means[p]))[:room]
    names = [phase.name for phase in palette.PHASES if phase.name in names]
    digits = numbers.digits_for(max(max(means[p]) for p in names)) if names else 2
    typical = {name: median(means[name]) for name in names}
    rows: list[Row] = [
        [
            (
                left("rank", 7) + "".join(right(name, PHASE_CELLS) for name in names) + "  mean ms",
                "muted",
            )
        ]
    ]
    for index, rank in enumerate(ranks):
        row: Row = [(left(f"{rank.rank:>4}", 7), "text")]
        for name in names:
            value = means[name][index]
            above = value - typical[name]
            slow = value > STANDS_OUT * typical[name] and above > 0.02 * rank.step_time_mean_ms
            text = ("▲" if slow else "") + numbers.ms_column(value, digits)
            row.append((right(text, PHASE_CELLS), "high" if slow else "text"))
        rows.append(row)
    return rows


def split_bar(rank: RankSummary, slowest_ms: float, width: int) -> Row:
    """Own time as a heavy line, waiting for others as a light one, on the scale of the slowest rank."""
    wait = rank.wait_mean_ms if numbers.known(rank.wait_mean_ms) else 0.0
    own, waiting, _ = apportion(
        [rank.step_time_mean_ms - wait, wait, slowest_ms - rank.step_time_mean_ms], width
    )
    return [("━" * own, "allocated"), ("─" * waiting, "muted"), (" " * (width - own - waiting), "")]


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


def legend(mono: bool = False) -> Row:
    """What the cells' colours say."""
    row: Row = [("step time / median ", "muted")]
    for ratio, words in ((0.8, "<0.9"), (1.0, "1"), (1.1, "1.1"), (1.3, "1.2"), (2.0, ">1.4")):
        style, glyph = palette.heat(ratio)
        row += [(" " + (glyph if mono else "▇"), style), (words, "muted")]
    return row


def strip_chart(recent: RecentSteps, width: int, height: int, mono: bool = False) -> list[Row]:
    """Step time of the only rank over the recent steps, one column each, coloured against the median."""
    walls = next(iter(recent.rank_wall_ms.values()), ())[-(width - AXIS) :]
    measured = [w for w in walls if w == w]
    if not measured:
        return say("No step in the last minutes.", width)
    middle = median(measured)
    top = numbers.nice_ceiling(min(max(measured), 3 * middle) * 1.02)
    rows: list[Row] = []
    for y in range(height):
        label = (
            numbers.duration_ms(top) if y == 0 else "0" if y == height - 1 and height > 2 else ""
        )
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

    def item_count(self, snapshot: Snapshot) -> int:
        ranks = len(snapshot.summary.ranks)
        return ranks if ranks > 1 else 0

    def visible_items(self) -> int:
        return max(1, self.size.height - 2)

    def note(self, snapshot: Snapshot) -> Row:
        return legend(self.mono)

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return draw(
            snapshot, width, height, self.first, self.cursor if self.has_focus else None, self.mono
        )

    def copy_text(self, snapshot: Snapshot) -> str:
        if not self.item_count(snapshot):
            return super().copy_text(snapshot)
        rank = snapshot.summary.ranks[self.cursor]
        phases = ", ".join(
            f"{name} {value:.3f}" for name, value in rank.phases_mean_ms.items() if value > 0
        )
        return f"rank {rank.rank} on {rank.host}: step {rank.step_time_mean_ms:.3f} ms mean; of it {phases}"
