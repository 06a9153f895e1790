"""Budget of the wall time: a bar for all of it, a waterfall of its lines, a line's meaning."""

from __future__ import annotations

from gputop import palette
from gputop.feed.budget import BudgetLoader, BudgetPageData
from gputop.pages.page import Page
from gputop.render import numbers
from gputop.render.bars import apportion, stacked_bar
from gputop.render.rows import Row, clip, left, right, row_width, shorten, spread, wrap
from gputop.widgets import plots
from gputop_analysis.budget import LINES, Budget
from gputop_analysis.goodput import NAMES as LOST
from gputop_analysis.text import counted

NAME, FIGURES = 24, 20
RANKS_WIDTH = 9


def draw(
    page: BudgetPageData, width: int, height: int, chosen: int = 0, mono: bool = False
) -> list[Row]:
    """All rows of the page; ``chosen`` is the number of the line that is explained."""
    budget = page.budget
    name = list(LINES)[chosen]
    values = list(budget.lines_ns.values())
    bar = stacked_bar(values, _styles(), letters=_letters(), width=width, mono=mono)
    explained = meaning(name, width)
    rows = [headline(page, width)]
    if height >= 20:
        rows += [session(page, width), bar]
    if height >= 26:
        rows += [bar, []]
    rows += waterfall(budget, width, chosen, mono, height - len(rows) - len(explained))
    if height >= 22 or height - len(rows) == 1:  # no heading with nothing below it
        rows += [[]]
    rows += explained
    if len(budget.ranks) > 1 and (room := height - len(rows) - 1) >= 3:
        rows += [[], *by_rank(budget, name, width, room - 1)]
    return rows


def _styles() -> list[str]:
    return [palette.BUDGET[name].style for name in LINES]


def _letters() -> list[str]:
    return [palette.BUDGET[name].letter for name in LINES]


def headline(page: BudgetPageData, width: int) -> Row:
    """Step time, how much of it is useful, and how much of the hardware that uses."""
    budget = page.budget
    total = budget.wall_ns / 1e6 / max(budget.steps, 1)
    row: Row = [
        (numbers.percent(budget.share("useful_compute")), "bold good"),
        (" useful of ", "muted"),
    ]
    row += [(numbers.duration_ms(total), "bold text"), (" a step, first ones too", "muted")]
    for name, value in (("MFU", budget.mfu), ("HFU", budget.hfu)):
        if value is not None:
            row += [(f"   {name} ", "muted"), (numbers.percent(value, 1), "text")]
    if budget.mfu is not None:
        end = page.of
    else:
        end = f"no MFU: {budget.compute_anchor}"
    return spread(row, [(shorten(end, width - row_width(row) - 2), "muted")], width)


def session(page: BudgetPageData, width: int) -> Row:
    """Rows on the session: share of time in steps that count, the rest's ways, power."""
    row: Row = []
    if (goodput := page.goodput) is not None:
        span = numbers.span(goodput.session_ns / 1e9)
        row += [
            (numbers.percent(goodput.goodput), "bold good"),
            (" goodput of ", "muted"),
            (span, "text"),
        ]
        lost = sorted(
            (
                (ns, part)
                for part, ns in goodput.parts_ns.items()
                if part != "productive" and ns >= 5e8
            ),
            reverse=True,
        )
        losses = ", ".join(
            f"{LOST.get(part, part)} {numbers.span(ns / 1e9)}" for ns, part in lost[:3]
        )
        if losses:
            row += [(f"   {losses}", "muted")]
    if (drawn := page.energy) is not None:
        if drawn.joules_per_sample is None:
            energy = ""
        else:
            energy = f", {numbers.scalar(drawn.joules_per_sample)} J a sample"
        row = spread(row, [(f"{numbers.scalar(drawn.watts)} W{energy}", "text")], width)
    return clip(row, width)


def waterfall(
    budget: Budget, width: int, chosen: int, mono: bool = False, height: int = len(LINES) + 2
) -> list[Row]:
    """One line each: name, milliseconds, share, and a bar from the end of the line above. Lines
    without a value give way where ``height`` is too little.
    """
    cells = width - NAME - FIGURES
    total = budget.wall_ns / 1e6 / max(budget.steps, 1)
    digits = numbers.digits_for(total)
    rows: list[Row] = [[(left("", NAME) + right("ms a step", 11) + right("share", 7), "muted")]]
    widths = apportion(list(budget.lines_ns.values()), cells)
    left_out = _left_out(budget, chosen, len(LINES) + 2 - height)
    start = 0
    for index, (name, cell_count) in enumerate(zip(LINES, widths, strict=True)):
        ground = ""
        if index == chosen:
            ground = "/cursor"
        if name in left_out:
            continue
        look = palette.BUDGET[name]
        key, stroke = "■", "━"
        if mono:
            key = stroke = look.letter
        used = budget.lines_ns[name] > 0
        if used:
            ms = numbers.ms_column(budget.ms_per_step(name), digits)
            share = numbers.percent(budget.share(name))
            key_style, style, leader = look.style, "text", "·"
        else:
            ms, share = "–", ""
            key_style, style, leader = "track", "muted", " "
        shown = max(cell_count, int(used))
        start = min(start, cells - shown)
        row: Row = [
            (key + " ", key_style + ground),
            (left(LINES[name].title, NAME - 2), style + ground),
            (right(ms, 11) + right(share, 7) + "  ", style + ground),
            (leader * start, "track"),
            (stroke * shown, look.style),
        ]
        rows.append(row)
        start += cell_count
    figures = right(numbers.ms_column(total, digits), 11) + right("100 %", 7) + "  "
    rows.append([(left("  wall time", NAME), "muted"), (figures, "bold text")])
    return rows


def _left_out(budget: Budget, chosen: int, too_many: int) -> set[str]:
    """Lines without a value, the last first; never the one that is explained."""
    names = list(LINES)
    empty = [name for name in names if budget.lines_ns[name] <= 0 and name != names[chosen]]
    return set(empty[-too_many:]) if too_many > 0 else set()


def meaning(name: str, width: int) -> list[Row]:
    """Definition of the line, and the columns it is read from."""
    line = LINES[name]
    rows: list[Row] = [plots.ruled(line.title, [("↑↓ another line", "muted")], width)]
    rows += [[(text, "text")] for text in wrap(line.text, width)]
    return [*rows, *([(text, "muted")] for text in wrap(f"read from {line.source}", width))]


def by_rank(budget: Budget, name: str, width: int, limit: int) -> list[Row]:
    """The ranks that have most of this line, milliseconds a step."""
    values = {}
    for rank_budget in budget.ranks:
        values[rank_budget.rank] = rank_budget.lines_ns[name] / 1e6 / max(rank_budget.steps, 1)
    order = sorted(values, key=lambda rank: (-values[rank], rank))[: max(limit - 1, 1)]
    top = max(values.values()) or 1.0
    digits = numbers.digits_for(top)
    title = f"{LINES[name].title} by rank" + (", the largest" if len(order) < len(values) else "")
    rows: list[Row] = [plots.ruled(title, [], width)]
    for rank in order:
        cells = width - RANKS_WIDTH - 11
        full = round(values[rank] / top * cells)
        row: Row = [
            (left(f"rank {rank}", RANKS_WIDTH), "text"),
            ("━" * full, palette.BUDGET[name].style),
        ]
        figure = right(numbers.ms_column(values[rank], digits), 11)
        rows.append([*row, ("─" * (cells - full), "track"), (figure, "text")])
    return rows


class BudgetPage(Page):
    """The budget of the run, with a cursor on its lines."""

    key = "8"
    title = "Efficiency budget"
    reads = BudgetPageData
    scrolled_by = "pgup pgdn"
    cursor = 0

    def loader(self) -> BudgetLoader:
        return BudgetLoader()

    def note(self) -> Row:
        page = self.page
        if not isinstance(page, BudgetPageData):
            return []
        ranks = len(page.budget.ranks)
        return [(f"{counted(ranks, 'rank')}, {page.of}", "muted")]

    def content(self, page: object, width: int, height: int) -> list[Row]:
        assert isinstance(page, BudgetPageData)
        return draw(page, width, height=height, chosen=self.cursor, mono=self.mono)

    def move(self, step: int) -> None:
        self.cursor = min(max(self.cursor + step, 0), len(LINES) - 1)
        self.first = 0
        self.redraw()

    def turn(self, direction: int) -> None:
        self.scroll_by(direction * max(1, self._rows_below(self.size.height) - 2))
