"""Columns of the table of ranks, and what each draws of a rank and its GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from gputop.feed.notices import standing_in
from gputop.feed.snapshot import Snapshot
from gputop.render import braille, numbers
from gputop.render.bars import apportion, fullness, layered_bar, stacked_bar
from gputop.render.rows import Row, right, shorten
from gputop.widgets import rank_map
from gputop.widgets.header import short_name
from gputop.widgets.rank_map import against_median
from gputop.widgets.standings import RankTimes, standings
from gputop.widgets.step_chart import PARTS
from gputop_analysis.step_parts import CALLED, WAIT

if TYPE_CHECKING:
    from gputop_analysis.model import GpuSummary

TREND_CELLS = 37
"""Cells of a minute of samples, two a cell, and its figure."""
TREND_DOTS = 3
"""Dots of a trend's height in a row of the table: a gap to the row above."""


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


def columns_of(snapshot: Snapshot, mono: bool) -> list[Column]:
    """The columns that say something of this run, from left to right."""
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
        Column("util 60 s", 12, 2, lambda line, n: _util(line, snapshot, n), 20, TREND_CELLS),
        Column("power", 9, 5, _power),
        Column("temp", 5, 6, _temperature),
        Column(f"{measure}/of, GiB", 20, 3, _gpu_memory, 20),
    ]


def _cpu_columns(snapshot: Snapshot) -> list[Column]:
    totals = {host.host: host.memory_total_gib for host in snapshot.summary.hosts}
    return [
        Column("CPU 60 s", 14, 3, lambda line, n: _cpu(line, snapshot, n), 20, TREND_CELLS),
        Column("RAM, GiB", 18, 5, lambda line, n: _ram(line, totals, n), 10),
    ]


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
    return _trend(series, 100.0, cells, numbers.whole(gpu.util_pct) + " %")


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
    text = braille.area(series, chart, top, TREND_DOTS)
    return [(text, "meter"), (right(figure, 7), "text")]


def _power(line: RankLine, cells: int) -> Row:
    gpu = line.gpu
    if gpu is None:
        return []
    text = f"{numbers.whole(gpu.power_w)}/{numbers.whole(gpu.power_limit_w)} W"
    return [(right(text, cells), "muted")]


def _temperature(line: RankLine, cells: int) -> Row:
    gpu = line.gpu
    if gpu is None:
        return []
    hot = numbers.known(gpu.temperature_c) and gpu.temperature_c >= 85
    return [(right(f"{numbers.whole(gpu.temperature_c)} °C", cells), "high" if hot else "muted")]


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
