"""All ranks of a run, up to thousands: a line each, sorted, the chosen one in detail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from gputop import palette
from gputop.feed.ranks import RanksLoader, RanksPageData
from gputop.pages.page import Page
from gputop.render import numbers
from gputop.render.bars import apportion, merged
from gputop.render.rows import Row, clip, left, right, row_width, shorten, whole
from gputop.widgets import plots
from gputop.widgets.rank_map import OF_STEPS, heat, legend
from gputop_analysis.rank_excess import reference

SORTS = ("wait", "own", "step", "excess", "slowest", "wait %", "rank")
"""Columns to sort by. Of the waits the smallest comes first: that rank holds up the others."""
ASCENDING = ("wait", "rank")
DETAIL_FROM = 26
"""Rows from which on the chosen rank gets a part of its own."""
HOST_FROM = 100
LEAST_DETAIL = 4
"""Rows for a title and the three longest phases."""
STRIP_FROM = 72
"""Cells from which on own work over the steps stands beside the table."""
IN_MS = frozenset({"step", "own", "wait"})
EXCESS = 18
"""Cells of the phase in which a rank is slow."""


def order(page: RanksPageData, sort: str, reverse: bool) -> list[int]:
    """Row numbers in the order shown; what was not measured comes last."""
    if sort == "rank":
        return sorted(range(len(page)), key=lambda i: page.ranks[i], reverse=reverse)
    values = page.columns[sort]
    sign = 1.0
    if (sort in ASCENDING) == reverse:
        sign = -1.0
    return sorted(range(len(page)), key=lambda i: (math.isnan(values[i]), sign * values[i]))


OF_SEVERAL = frozenset({"worst", "sort", "reverse"})
"""Actions that one rank alone, or none yet, gives nothing to do."""
ALONE = "one rank, which waits for no other: here are its phases"


def standing_out(page: RanksPageData) -> list[int]:
    """Row numbers of the rank that holds up others and of those slow in a phase, worst first."""
    odd = [
        index
        for index in range(len(page))
        if page.ranks[index] == page.culprit or page.excess_phase[index]
    ]
    excess = page.columns["excess"]
    return sorted(
        odd, key=lambda i: (page.ranks[i] != page.culprit, math.isnan(excess[i]), -excess[i])
    )


def headline(page: RanksPageData, width: int) -> list[Row]:
    """Sentence on who holds up whom, and what the waiting comes to."""
    if len(page) == 1:
        return [[("○ ", "info"), (shorten(ALONE, width - 2), "bold text")]]
    words = {
        "persistent": ("▲ ", "high", f"rank {page.culprit} holds up the others"),
        "rotating": (
            "◆ ",
            "medium",
            "the ranks take turns at being slow: the work is uneven, or they share cores",
        ),
        "balanced": ("● ", "good", "no rank holds up the others more than chance would"),
        "unknown": ("○ ", "info", _not_told(page)),
    }
    mark, style, text = words[page.pattern]
    if page.pattern == "persistent" and page.cause:
        text += f": it is slow in {'host code' if page.cause == 'other' else page.cause}"
    rows: list[Row] = [[(mark, style), (shorten(text, width - 2), "bold text")]]
    figures: list[Row] = []
    if page.exposed_comm_ms == page.exposed_comm_ms:
        exposed = numbers.duration_ms(page.exposed_comm_ms)
        figures.append([("communication exposed ", "muted"), (exposed + "   ", "text")])
    if page.load_imbalance == page.load_imbalance:
        imbalance = f"{1 + page.load_imbalance:.1f}x the mean"
        figures.append([("slowest own work ", "muted"), (imbalance + "   ", "text")])
    if page.source:
        figures.append([(f"by {page.source}", "muted")])
    return [*rows, whole(figures, width)]


def _not_told(page: RanksPageData) -> str:
    if any(value == value for value in page.columns["wait"]):
        return "too few steps that all ranks have to tell who holds up whom"
    return "nothing measures the waiting here: ranks are compared by their step time"


def table(
    page: RanksPageData,
    rows_shown: list[int],
    width: int,
    sort: str,
    *,
    cursor: int | None = None,
    mono: bool = False,
    arrow: str = "▴",
) -> list[Row]:
    """A heading, then the given rows; no others are drawn. ``arrow``: the column sorted by."""
    with_host = width >= HOST_FROM and len(set(page.hosts)) > 1
    slowest = max((v for v in page.columns["step"] if v == v), default=1.0)
    digits = numbers.digits_for(slowest)
    strip = f"own work against {reference(len(page))}" if page.excess_over_steps else ""
    rows: list[Row] = [_heading(sort, arrow, with_host, strip, width)]
    for index in rows_shown:
        rows.append(
            _line(
                page,
                index=index,
                width=width,
                digits=digits,
                with_host=with_host,
                chosen=index == cursor,
                mono=mono,
            )
        )
    return rows


def _heading(sort: str, arrow: str, with_host: bool, strip: str, width: int) -> Row:
    names = [("rank", 6), ("step", 9), ("own", 9), ("wait", 9), ("wait %", 7), ("slowest", 9)]
    row: Row = []
    for name, cells in names:
        shown = f"{name} ms" if name in IN_MS else name
        if name == sort:
            row.append((right(arrow + shown, cells), "accent"))
        else:
            row.append((right(shown, cells), "muted"))
    if sort == "excess":
        row.append((left(f"  {arrow}slow in", EXCESS), "accent"))
    else:
        row.append((left("  slow in", EXCESS), "muted"))
    if with_host:
        row += [(left("host", 14), "muted")]
    return clip([*row, (shorten(strip, max(width - row_width(row), 0)), "muted")], width)


def _line(
    page: RanksPageData,
    *,
    index: int,
    width: int,
    digits: int,
    with_host: bool,
    chosen: bool,
    mono: bool,
) -> Row:
    rank = page.ranks[index]
    ground = ""
    if chosen:
        ground = "/cursor"
    mark, share_style = " ", "text"
    if rank == page.culprit:
        mark, share_style = "▲", "high"
    values = {name: column[index] for name, column in page.columns.items()}
    row: Row = [(mark, "high" + ground), (right(str(rank), 5), "text" + ground)]
    for name, style in (("step", "text"), ("own", "text"), ("wait", "muted")):
        row.append((right(numbers.ms_column(values[name], digits), 9), style + ground))
    row.append((right(numbers.percent(values["wait %"]), 7), "muted" + ground))
    row.append((right(numbers.percent(values["slowest"]), 9), share_style + ground))
    phase = page.excess_phase[index]
    excess = ""
    if phase:
        excess = f"{phase} +{numbers.ms_column(values['excess'], digits)}"
        if row_width(row) + len(excess) + 2 > width:
            excess = phase
    row.append((left("  " + excess, EXCESS), share_style + ground))
    if with_host:
        row += [(left(page.hosts[index], 14), "muted" + ground)]
    strip = _strip(page.excess_over_steps.get(rank, ()), width - row_width(row) - 1, mono)
    return clip([*row, *strip], width)


def _strip(excess: Sequence[float], cells: int, mono: bool) -> Row:
    """Own work over the steps in as many cells, coloured by how much longer than the median's."""
    if not excess or cells < 1:
        return []
    row: list[tuple[str, str]] = []
    for x in range(cells):
        style, glyph = heat(1 + excess[x * len(excess) // cells], OF_STEPS)
        row.append((glyph if mono else "▇", style))
    return merged(row)


def detail(page: RanksPageData, index: int, width: int, height: int) -> list[Row]:
    """The phases of one rank beside the median rank's; alone where there is no other one."""
    if height < 1:
        return []
    rows: list[Row] = [
        plots.ruled(
            f"rank {page.ranks[index]} on {page.hosts[index]}: phases, ms a step", [], width
        )
    ]
    compared, typical = _typical_ms(page, index)
    names = list(typical)
    alone = len(page) == 1
    own_ms = {name: page.phases_ms[name][index] for name in names}
    top = max([*typical.values(), *(v for v in own_ms.values() if v == v)], default=1.0) or 1.0
    digits, cells = numbers.digits_for(top), width - 12 - (9 if alone else 32)
    longest_first = sorted(names, key=lambda name: -_known_ms(own_ms[name]))
    for name in longest_first[: height - 1]:
        mark, figures_style = "  ", "text"
        if own_ms[name] > 1.2 * typical[name]:
            mark, figures_style = "▲ ", "high"
        own_text = right(numbers.ms_column(own_ms[name], digits), 9)
        typical_text = right(numbers.ms_column(typical[name], digits), 9)
        full = 0
        if own_ms[name] == own_ms[name]:
            full = apportion([own_ms[name], max(top - own_ms[name], 0.0)], cells)[0]
        bar = [("━", name)] * full + [("─", "track")] * (cells - full)
        if cells > 0 and not alone:
            bar[min(cells - 1, round(typical[name] / top * cells))] = ("┃", "accent")
        start: Row = [(mark, "high"), (left(name, 10), "text")]
        figures = own_text if alone else f"{own_text}  {left(compared, 6)} {typical_text}"
        rows.append([*start, *merged(bar), (figures, figures_style)])
    return rows


def _typical_ms(page: RanksPageData, index: int) -> tuple[str, dict[str, float]]:
    """What a rank is compared with: its name, and its milliseconds of each phase that took time."""
    measured = {name: [ms for ms in values if ms == ms] for name, values in page.phases_ms.items()}
    names = [phase.name for phase in palette.PHASES if max(measured.get(phase.name) or [0.0]) > 0]
    typical = {name: median(measured[name]) for name in names}
    if len(page) != 2:
        return "median", typical
    # the median of two would halve the difference
    other = 1 - index
    other_ms = {name: page.phases_ms[name][other] for name in names}
    typical |= {name: ms for name, ms in other_ms.items() if not math.isnan(ms)}
    return f"rank {page.ranks[other]}", typical


def _known_ms(value: float) -> float:
    """The value; 0 where it was not measured (NaN)."""
    if math.isnan(value):
        return 0.0
    return value


def path_row(page: RanksPageData, width: int) -> Row:
    """Whether the slow rank set each of the newest steps; which one did, where none is slow and
    one digit names it.
    """
    shown = page.path[-max(width - 23, 1) :]
    few = len(page) <= 10 and page.culprit is None
    cells: Row = []
    for rank in shown:
        mark, style = "·", "muted"
        if rank == page.culprit:
            mark, style = "▲", "high"
        if few:
            mark = str(rank)
        cells.append((mark, style))
    return [("set the step, newest → ", "muted"), *merged(cells)]


def _key(key: str, does: str) -> Row:
    return [(key, "accent"), (f" {does}", "muted")]


class RanksPage(Page):
    """All ranks with a cursor; sorted by a key."""

    key = "0"
    title = "All ranks"
    reads = RanksPageData

    def __init__(self, *, id: str | None = None, rank: int | None = None):
        super().__init__(id=id)
        self.sort = "wait"
        self._asked = rank
        """The rank to begin with, until it was found in the data."""
        self.reverse = False
        self.only_worst = False
        """Whether ranks that do not stand out are left out."""
        self.chosen: int | None = None
        """Row number of the chosen rank in the data: it stays chosen when the order changes."""
        self._top = 0
        self._order: list[int] = []
        self._room = 1

    def loader(self) -> RanksLoader:
        return RanksLoader()

    def idle(self) -> frozenset[str]:
        several = isinstance(self.page, RanksPageData) and len(self.page) > 1
        return frozenset() if several else OF_SEVERAL

    def note(self) -> Row:
        if not self._order:
            return []
        last = min(self._top + self._room, len(self._order))
        text = ""
        if of := self._of():
            text = f"mean ms a step, {of}   "
        if len(self._order) == 1 and not self.only_worst:
            return [(text.rstrip(), "muted")]
        rows = f"{self._top + 1}–{last} of {len(self._order):,}"
        if self.only_worst and isinstance(self.page, RanksPageData):
            odd = f"{len(self._order):,} of {len(self.page):,} stand out"
            return [(odd, "accent"), (f"   {rows} by {self.sort}, ", "muted"), *_key("w", "all")]
        return [(f"{text}{rows} by {self.sort}, ", "muted"), *_key("s", "sorts")]

    def _of(self) -> str:
        if isinstance(self.page, RanksPageData) and self.size.width >= 100:
            return self.page.of
        return ""

    def content(self, page: object, width: int, height: int) -> list[Row]:
        assert isinstance(page, RanksPageData)
        chosen = self._put_in_order(page)
        head = headline(page, width)
        path = []
        if page.path and len(page) > 1 and height >= 16:
            path = [path_row(page, width)]
        scale: list[Row] = []
        if page.excess_over_steps and len(page) > 1 and width >= STRIP_FROM:
            words = f"own work of a step / {reference(len(page))}"
            scale = [clip(legend(self.mono, OF_STEPS, words), width)]
        gap: list[Row] = [[]] if height >= 22 else []
        around = [*head, *path, *gap, *scale]
        below = detail(page, chosen, width, self._detail_rows(page, height, len(around) + 1))
        if below:
            below = [*gap, *below]
        self._room = max(1, height - len(around) - len(below) - 1)
        self._keep_in_view(self._order.index(chosen))
        shown = self._order[self._top : self._top + self._room]
        rises = (self.sort in ASCENDING) != self.reverse
        rows = table(
            page,
            rows_shown=shown,
            width=width,
            sort=self.sort,
            cursor=chosen,
            mono=self.mono,
            arrow="▴" if rises else "▾",
        )
        return [*head, *path, *gap, *rows, *scale, *below]

    def _detail_rows(self, page: RanksPageData, height: int, taken: int) -> int:
        """Rows for the phases of the chosen rank: on a small screen those that ranks leave."""
        if len(page) == 1:
            return min(11, height - taken - 1)
        if height >= DETAIL_FROM:
            return min(10, height // 3)
        spare = height - taken - len(self._order)
        return min(10, spare) if spare >= LEAST_DETAIL else 0

    def _put_in_order(self, page: RanksPageData) -> int:
        """Sort the ranks, or those that stand out; the index of the chosen one."""
        self._order = order(page, self.sort, self.reverse)
        worst = set(standing_out(page))
        if not worst:
            self.only_worst = False  # nothing stands out any more
        if self.only_worst:
            self._order = [index for index in self._order if index in worst]
        if self._asked in page.ranks:
            self.chosen, self._asked = page.ranks.index(self._asked), None
        if self.chosen is not None and self.chosen in self._order:
            return self.chosen
        return self._order[0]

    def _keep_in_view(self, position: int) -> None:
        top = min(self._top, max(len(self._order) - self._room, 0))
        self._top = min(max(top, position - self._room + 1), position)

    def move(self, step: int) -> None:
        if not self._order:
            return
        position = 0
        if self.chosen in self._order:
            position = self._order.index(self.chosen)
        self.chosen = self._order[min(max(position + step, 0), len(self._order) - 1)]
        self.redraw()

    def turn(self, direction: int) -> None:
        self.move(direction * self._room)

    def turn_worst(self) -> bool:
        """Leave out what is normal and go to the worst, or show all. Returns whether any is out."""
        page = self.page
        worst = standing_out(page) if isinstance(page, RanksPageData) else []
        self.only_worst = bool(worst) and not self.only_worst
        if worst:
            self.chosen = worst[0]
        self.redraw()
        return bool(worst)

    def sort_next(self) -> None:
        """Sort by the next column, from its telling end."""
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self._resorted(False)

    def turn_round(self) -> None:
        """The other end first."""
        self._resorted(not self.reverse)

    def _resorted(self, reverse: bool) -> None:
        self.reverse, self.chosen, self._top = reverse, None, 0
        self.redraw()
