"""Ranks, their GPUs and their memory in one table; many ranks become a heat map."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from textual.message import Message

from gputop import palette
from gputop.feed.notices import standing_in
from gputop.feed.snapshot import Resources, Snapshot
from gputop.panels import GRID_FROM
from gputop.render import braille, numbers
from gputop.render.bars import apportion, bar, layered_bar, stacked_bar
from gputop.render.rows import Row, clip, fill, left, right, row_width, say, shorten
from gputop.widgets import phase_table, rank_map
from gputop.widgets.canvas import upon_cursor
from gputop.widgets.header import short_name
from gputop.widgets.rank_map import against_median
from gputop.widgets.scrolling import ScrollingPanel
from gputop.widgets.standings import RankTimes, standings
from gputop.widgets.step_chart import PARTS
from gputop_analysis.overview import GPUS_ADDED
from gputop_analysis.step_parts import CALLED, WAIT

if TYPE_CHECKING:
    from gputop_analysis.model import GpuSummary, HostSummary, RankSummary

TREND = 37
"""Cells of a minute of samples, two a cell, and its figure."""
STACKED = 3
"""Dots of a trend's height in a row of the table: a gap to the row above."""
LEAST_NET = 0.05
"""MB/s from which on the network is worth a word."""
FULL, NEARLY_FULL = 0.95, 0.85
"""Shares of a memory from which on it is drawn as critical, and as high."""


class RankLine(NamedTuple):
    """What a row is about: a rank, its GPU, or one of them."""

    standing: RankTimes | None
    gpu: GpuSummary | None
    mark: tuple[str, str]


class Column(NamedTuple):
    """A column: ``place`` is its importance, 0 stays longest; ``stretch`` its weight for room, of
    which it takes no more than ``most`` cells.
    """

    head: str
    cells: int
    place: int
    draw: Callable[[RankLine, int], Row]
    stretch: int = 0
    most: int = 1000


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
        columns = fitting(_columns(snapshot, mono), width)
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


def _columns(snapshot: Snapshot, mono: bool) -> list[Column]:
    run = snapshot.summary
    several = len(run.ranks) > 1
    columns = [Column("rank", 5, 0, _name)]
    if len(run.hosts) > 1:
        columns.append(Column("host", 10, 8, _host))
    if run.gpus:
        columns += _gpu_columns(snapshot)
    elif run.ranks:
        columns += _cpu_columns(snapshot)
    if not run.ranks:
        return columns
    slowest = max(rank.step_time_mean_ms for rank in run.ranks)
    digits = numbers.digits_for(slowest)
    if not several:
        columns.append(Column("phases", 16, 3, lambda line, n: _phases(line, n, mono), 40))
        columns.append(Column("step ms", 8, 1, lambda line, n: _ms(line, n, digits, "step")))
        return columns
    columns += [
        Column("own ━ wait ╌", 12, 4, lambda line, n: _split(line, slowest, n), 16),
        Column("  own ms", 8, 1, lambda line, n: _ms(line, n, digits, "own")),
        Column("wait ms", 7, 2, lambda line, n: _ms(line, n, digits, "wait")),
    ]
    if places := standing_in(snapshot):
        return [
            *columns,
            Column("stands in", 24, 0, lambda line, n: _stands_in(line, places, n), 16),
        ]
    columns.append(Column("vs peer" if len(run.ranks) == 2 else "vs median", 9, 0, _against))
    if any(standing.phase for standing in standings(run.ranks)):
        columns.append(Column("slow in", 14, 8, _slow_in, 6))
    return columns


def _gpu_columns(snapshot: Snapshot) -> list[Column]:
    is_allocated_known = any(numbers.known(rank.allocated_gib) for rank in snapshot.summary.ranks)
    measure = "allocated" if is_allocated_known else "used"
    return [
        Column("gpu", 7, 7, _gpu_name, 2),
        Column("util 60 s", 12, 2, lambda line, n: _util(line, snapshot, n), 20, TREND),
        Column("power", 9, 5, _power),
        Column("temp", 5, 6, _temperature),
        Column(f"{measure}/of, GiB", 20, 3, _gpu_memory, 20),
    ]


def _cpu_columns(snapshot: Snapshot) -> list[Column]:
    totals = {host.host: host.memory_total_gib for host in snapshot.summary.hosts}
    return [
        Column("CPU 60 s", 14, 3, lambda line, n: _cpu(line, snapshot, n), 20, TREND),
        Column("RAM, GiB", 18, 5, lambda line, n: _ram(line, totals, n), 10),
    ]


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


def _name(line: RankLine, _cells: int) -> Row:
    if line.standing is None:
        return [(" ", ""), (right("–", 4), "muted")]
    style = "text" if line.mark[0] == " " else "bold " + line.mark[1]
    return [line.mark, (right(str(line.standing.rank.rank), 4), style)]


def _host(line: RankLine, cells: int) -> Row:
    if line.standing:
        host = line.standing.rank.host
    elif line.gpu:
        host = line.gpu.host
    else:
        host = ""
    return [(shorten(host, cells), "muted")]


def _gpu_name(line: RankLine, cells: int) -> Row:
    if line.gpu is None:
        return [(numbers.NONE, "muted")]
    return [(shorten(f"{line.gpu.index} {short_name(line.gpu.name)}", cells), "muted")]


def _util(line: RankLine, snapshot: Snapshot, cells: int) -> Row:
    gpu = line.gpu
    if gpu is None:
        return [(right(numbers.NONE, cells), "muted")]
    series = snapshot.history.of(f"gpu {gpu.host} {gpu.index}")
    return _trend(series, 100.0, cells, _whole(gpu.util_pct) + " %")


def _cpu(line: RankLine, snapshot: Snapshot, cells: int) -> Row:
    if line.standing is None:
        return []
    series = snapshot.history.of(f"rank {line.standing.rank.rank}")
    finite = [value for value in series if value == value]
    if not finite:
        return [(right(numbers.NONE, cells), "muted")]
    top = max(100.0, numbers.nice_ceiling(max(finite)))
    return _trend(series, top, cells, f"{finite[-1]:,.0f} %")


def _trend(series: tuple[float, ...], top: float, cells: int, figure: str) -> Row:
    chart = cells - 7
    text = braille.area(series, chart, top, STACKED)
    return [(text, "meter"), (right(figure, 7), "text")]


def _power(line: RankLine, cells: int) -> Row:
    gpu = line.gpu
    if gpu is None:
        return []
    text = f"{_whole(gpu.power_w)}/{_whole(gpu.power_limit_w)} W"
    return [(right(text, cells), "muted")]


def _temperature(line: RankLine, cells: int) -> Row:
    gpu = line.gpu
    if gpu is None:
        return []
    hot = numbers.known(gpu.temperature_c) and gpu.temperature_c >= 85
    return [(right(f"{_whole(gpu.temperature_c)} °C", cells), "high" if hot else "muted")]


def _gpu_memory(line: RankLine, cells: int) -> Row:
    """``━`` allocated, ``╍`` reserved beyond it, ``╌`` others', ``┃`` the peak; the colour says how
    full it is.
    """
    gpu = line.gpu
    if gpu is None:
        return []
    rank = line.standing.rank if line.standing else None
    allocated = rank.allocated_gib if rank else float("nan")
    used, total = gpu.memory_used_gib, gpu.memory_total_gib
    peak = rank.peak_allocated_gib if rank else gpu.peak_used_gib
    full = 0.0
    if total:
        full = max(used, peak if numbers.known(peak) else 0.0) / total
    style = fullness(full)
    if not numbers.known(allocated):
        parts = [(used, style, "━")]
    else:
        if rank and numbers.known(rank.reserved_gib):
            reserved = rank.reserved_gib
        else:
            reserved = allocated
        parts = [
            (allocated, style, "━"),
            (reserved - allocated, "reserved", "╍"),
            (used - reserved, "foreign", "╌"),
        ]
    shown = allocated if numbers.known(allocated) else used
    figure = f"{numbers.gib(shown)}/{numbers.gib(total)}"
    return [*layered_bar(parts, peak, total, cells - 12), (right(figure, 12), "text")]


def _ram(line: RankLine, totals: dict[str, float], cells: int) -> Row:
    if line.standing is None:
        return []
    rank = line.standing.rank
    total = totals.get(rank.host, float("nan"))
    style = fullness(rank.rss_gib / total if total else 0.0)
    figure = numbers.gib(rank.rss_gib)
    if not total > 0:  # before the machine was looked at for the first time
        return [(right(figure, cells), "text")]
    figure += f"/{total:,.0f}"
    parts = [(rank.rss_gib, style, "━")]
    return [*layered_bar(parts, rank.peak_rss_gib, total, cells - 9), (right(figure, 9), "text")]


def fullness(share: float) -> str:
    """Style of a memory by how full it is."""
    if share >= FULL:
        return "critical"
    if share >= NEARLY_FULL:
        return "high"
    return "allocated"


def _phases(line: RankLine, cells: int, mono: bool) -> Row:
    if line.standing is None:
        return []
    means = line.standing.rank.phases_mean_ms
    values = [means.get(CALLED if name == WAIT else name, 0.0) for name in PARTS]
    styles, letters = [look.style for look in PARTS.values()], [p.letter for p in PARTS.values()]
    return stacked_bar(values, styles, letters, cells, mono)


def _split(line: RankLine, slowest_ms: float, cells: int) -> Row:
    """Own time as a heavy line, waiting for others dashed, on the slowest step's scale."""
    standing = line.standing
    if standing is None:
        return []
    idle_ms = slowest_ms - standing.own_ms - standing.wait_ms
    own_cells, waiting, _ = apportion([standing.own_ms, standing.wait_ms, idle_ms], cells)
    style = "forward"
    if standing.ratio >= 1.05:
        style = rank_map.heat(standing.ratio)[0]
    return [("━" * own_cells, style), ("╌" * waiting, "wait")]


def _ms(line: RankLine, cells: int, digits: int, what: str) -> Row:
    standing = line.standing
    if standing is None:
        return []
    rank = standing.rank
    values = {"own": standing.own_ms, "wait": rank.wait_mean_ms, "step": rank.step_time_mean_ms}
    text = right(numbers.ms_column(values[what], digits), cells)
    return [(text, "muted" if what == "wait" else "text")]


def _against(line: RankLine, cells: int) -> Row:
    if line.standing is None:
        return []
    ratio = line.standing.ratio
    return [(right(against_median(ratio), cells), rank_map.in_words(ratio))]


def _stands_in(line: RankLine, places: dict[int, str], cells: int) -> Row:
    if line.standing is None:
        return []
    style = "text" if line.mark[0] == " " else line.mark[1]
    return [(shorten(places.get(line.standing.rank.rank, numbers.NONE), cells), style)]


def _slow_in(line: RankLine, cells: int) -> Row:
    words = line.standing.slow_in if line.standing else ""
    return [(shorten(words, cells), "high")]


def _whole(value: float) -> str:
    return f"{value:,.0f}" if numbers.known(value) else numbers.NONE


def host_row(host: HostSummary, snapshot: Snapshot, width: int) -> Row:
    """CPU, memory, disk and network of one host; one that does not fit is left out, never cut."""
    name = host.host if len(snapshot.summary.hosts) > 1 else "host"
    row: Row = [(left(shorten(name, 8), 8), "muted")]
    series = snapshot.history.of(f"cpu {host.host}")
    row += [("CPU ", "muted"), (braille.area(series, 10, 100.0, STACKED), "meter")]
    row += [(right(_whole(host.cpu_pct), 4), "text"), (f" % of {host.cpu_count}", "muted")]
    if host.memory_total_gib:
        share = host.memory_used_gib / host.memory_total_gib
    else:
        share = 0.0
    memory: Row = [("RAM ", "muted"), (numbers.gib(host.memory_used_gib), "text")]
    memory += [(f"/{host.memory_total_gib:,.0f} GiB ", "muted"), *bar(share, 10, fullness(share))]
    disk: Row = [("disk ", "muted"), (numbers.rate(host.disk_read_mb_s), "text")]
    disk += [
        (" in ", "muted"),
        (numbers.rate(host.disk_write_mb_s), "text"),
        (" out MB/s", "muted"),
    ]
    fields = [memory, disk]
    waits = numbers.known(host.run_wait_share) and host.run_wait_share >= 0.005
    if waits and not snapshot.ended:  # of the last 10 s: findings tell the whole window's
        share_text = numbers.percent(host.run_wait_share)
        fields.insert(0, [("waiting for a core now ", "muted"), (share_text, "text")])
    resources = snapshot.panels.get("history", Resources())
    net = resources.newest("net")
    if net >= LEAST_NET and len(snapshot.summary.hosts) == 1:
        fields.append([("net ", "muted"), (numbers.rate(net), "text"), (" MB/s", "muted")])
    for field in fields:
        if row_width(row) + row_width(field) + 3 <= width:
            row += [("   ", ""), *field]
    return clip(row, width)


class Ranks(ScrollingPanel):
    """Panel 3."""

    _moved = False
    """Whether somebody moved the cursor."""

    class Chosen(Message):
        """A rank was opened."""

        def __init__(self, rank: int):
            super().__init__()
            self.rank = rank

    def heading(self, snapshot: Snapshot) -> str:
        heading = super().heading(snapshot)
        return f"{heading}, own and wait before the stop" if snapshot.summary.stands else heading

    def item_count(self, snapshot: Snapshot) -> int:
        ranks = len(snapshot.summary.ranks)
        return ranks if ranks > 1 else 0

    def _keep_in_view(self) -> None:
        """Until somebody moves in it, it stands at the rank that the first finding names."""
        room, named = self.visible_items(), self._named()
        if not self._moved:
            self.set_reactive(ScrollingPanel.cursor, named)
        super()._keep_in_view()
        if self.has_focus or self._moved or self.snapshot is None:
            return
        if named >= room:
            self.first = min(named - room // 2, len(self.snapshot.summary.ranks) - room)

    def _named(self) -> int:
        """Index of the rank that the first finding names; 0 where none does."""
        if self.snapshot is None:
            return 0
        ranks = [rank.rank for rank in self.snapshot.summary.ranks]
        named = [finding.rank for finding in self.snapshot.findings if finding.rank in ranks]
        return ranks.index(named[0]) if named else 0

    def move(self, step: int) -> None:
        self._moved = True
        super().move(step)

    def visible_items(self) -> int:
        room = self.inside(*self.size)[1]
        if self.snapshot is None:
            return max(room, 1)
        count = len(self.snapshot.summary.ranks)
        if count >= GRID_FROM:
            return count
        hosts = min(len(self.snapshot.summary.hosts), 2)
        return max(1, room - 1 - (hosts if room >= min(count, 3) + 1 + hosts else 0))

    def note(self, snapshot: Snapshot) -> Row:
        many = len(snapshot.summary.ranks)
        if many >= GRID_FROM:
            return [
                (f"{many:,} ranks · enter opens one · ", "muted"),
                ("w", "accent"),
                (" all", "muted"),
            ]
        if snapshot.summary.gpus_added:
            return [(GPUS_ADDED + ", not measured", "accent")]
        if snapshot.summary.gpus and self.size.width >= 90:
            return [("━ allocated  ╍ reserved  ╌ others'  ┃ peak", "muted")]
        if many > 1:
            return [("w", "accent"), (" all ranks", "muted")]
        return []

    def content(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        cursor = self.cursor if self.has_focus else None
        return draw(snapshot, width, height, first=self.first, cursor=cursor, mono=self.mono)

    def page(self, direction: int) -> None:
        ranks = len(self.snapshot.summary.ranks) if self.snapshot else 0
        width, height = self.inside(*self.size)
        if ranks < GRID_FROM:
            return super().page(direction)
        return self.move(direction * rank_map.layout_of(ranks, width, height - 1).columns)

    def choose(self) -> None:
        """Open the rank under the cursor."""
        self._moved = True
        ranks = self.snapshot.summary.ranks if self.snapshot else ()
        if len(ranks) > 1:
            self.post_message(self.Chosen(ranks[self.cursor].rank))

    def head_rows(self) -> int:
        return 1

    def clicked(self, x: int, y: int) -> None:
        ranks = self.snapshot.summary.ranks if self.snapshot else ()
        if len(ranks) < GRID_FROM:
            super().clicked(x, y)
            return
        width, height = self.inside(*self.size)
        if self.snapshot:
            hosts = min(len(self.snapshot.summary.hosts), 2)
        else:
            hosts = 0
        lead, columns, cells = rank_map.layout_of(len(ranks), width, height - hosts)
        column = (x - lead) // cells
        index = 2 * y * columns + column
        if 0 <= column < columns and index < len(ranks):
            index = self._slower(index, index + columns, ranks)
            self.cursor = index
            self.choose()

    def _slower(self, above: int, below: int, ranks: tuple[RankSummary, ...]) -> int:
        """Of a cell's two ranks the one with more work of its own, which a click there means."""
        if below >= len(ranks):
            return above
        ranked = standings(ranks)
        return max(above, below, key=lambda index: ranked[index].ratio)

    def copy_text(self, snapshot: Snapshot) -> str:
        if not self.item_count(snapshot):
            return super().copy_text(snapshot)
        rank = snapshot.summary.ranks[self.cursor]
        phases = ", ".join(
            f"{name} {value:.3f}" for name, value in rank.phases_mean_ms.items() if value > 0
        )
        return (
            f"rank {rank.rank} on {rank.host}: step {rank.step_time_mean_ms:.3f} ms "
            f"mean; of it {phases}"
        )
