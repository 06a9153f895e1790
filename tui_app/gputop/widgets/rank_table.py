"""Ranks, their GPUs and their memory in one table; many ranks become a heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop import palette
from gputop.feed.snapshot import Snapshot
from gputop.panels import GRID_FROM
from gputop.render.rows import Row, fill, left, say
from gputop.widgets import phase_table, rank_map
from gputop.widgets.canvas import upon_cursor
from gputop.widgets.host_row import host_row
from gputop.widgets.rank_columns import Column, RankLine, columns_of
from gputop.widgets.standings import standings

if TYPE_CHECKING:
    from gputop_analysis.model import RankSummary


def draw(
    snapshot: Snapshot,
    width: int,
    height: int,
    *,
    first: int = 0,
    cursor: int | None = None,
    mono: bool = False,
) -> list[Row]:
    """The table, ``first`` ranks scrolled away, the rank at ``cursor`` marked; hosts in the last
    rows.
    """
    lines = lines_of(snapshot)
    if not lines:
        return say("Ranks appear with their first training step.", width)
    hosts = [host_row(host, snapshot, width) for host in snapshot.summary.hosts[:2]]
    hosts = hosts if height >= min(len(lines), 3) + 1 + len(hosts) else []
    room = height - len(hosts)
    if len(lines) >= GRID_FROM and snapshot.summary.ranks:
        standings = [line.standing for line in lines if line.standing is not None]
        marks = _severities(snapshot)
        rows = rank_map.draw(standings, width, room, cursor=cursor, mono=mono, marks=marks)
    else:
        columns = fitting(columns_of(snapshot, mono), width)
        rows = [[(clip_head(columns), "muted")]]
        for index, line in enumerate(lines[first : first + room - 1], first):
            rows.append(_row(line, columns, index == cursor))
    missing = height - len(rows) - len(hosts)
    ranks = snapshot.summary.ranks
    if missing >= len(ranks) + 2 and 1 < len(ranks) < GRID_FROM:
        rows += [[], *phase_table.draw(ranks, width, cursor)]
        missing = height - len(rows) - len(hosts)
    apart: list[Row] = [[]] if hosts and missing > 0 else []
    return [*rows, *apart, *hosts]


def clip_head(columns: list[Column]) -> str:
    """The line of headings."""
    return "  ".join(left(column.head, column.cells) for column in columns)


def lines_of(snapshot: Snapshot) -> list[RankLine]:
    """A row for each rank with its GPU, then for each GPU that no rank uses."""
    run = snapshot.summary
    marked = _severities(snapshot)
    gpus = {(gpu.host, gpu.index): gpu for gpu in run.gpus}
    lines = []
    for standing in standings(run.ranks):
        rank = standing.rank
        gpu = gpus.get(snapshot.devices.get(rank.rank, ("", -1)))
        mark = marked.get(rank.rank) or _at_hand(rank, snapshot.ended)
        lines.append(RankLine(standing, gpu, mark))
    used = {snapshot.devices.get(rank.rank) for rank in run.ranks}
    lines += [RankLine(None, gpu, (" ", "text")) for key, gpu in gpus.items() if key not in used]
    return lines


def fitting(columns: list[Column], width: int) -> list[Column]:
    """The columns that fit, the least important out first; the rest goes to those that stretch."""
    columns = list(columns)

    def used() -> int:
        return sum(column.cells for column in columns) + 2 * (len(columns) - 1)

    while used() > width and len(columns) > 1:
        columns.remove(max(columns, key=lambda column: column.place))
    spare = width - used()
    wanted = sum(column.stretch for column in columns)
    result = []
    for column in columns:
        more = spare * column.stretch // wanted if wanted else 0
        cells = min(column.cells + max(more, 0), max(column.most, column.cells))
        spare, wanted = spare - (cells - column.cells), wanted - column.stretch
        result.append(column._replace(cells=cells))
    return result


def _row(line: RankLine, columns: list[Column], chosen: bool) -> Row:
    row: Row = []
    for column in columns:
        row += [("  ", "")] if row else []
        row += fill(column.draw(line, column.cells), column.cells)
    return upon_cursor(row) if chosen else row


def _severities(snapshot: Snapshot) -> dict[int, tuple[str, str]]:
    """Glyph and style of the worst finding of each rank that one names."""
    marks = {}
    for finding in reversed(snapshot.findings):
        if finding.rank is not None:
            marks[finding.rank] = palette.SEVERITY[finding.severity].glyph, finding.severity
    return marks


def _at_hand(rank: RankSummary, ended: bool) -> tuple[str, str]:
    """Glyph and style of a rank without a finding: that it is gone while the run goes on."""
    return (" ", "text") if rank.alive or ended else ("○", "muted")
