"""Where the wall time went: one bar for all of it, a waterfall of its lines, and what the chosen line means."""

from __future__ import annotations

from gputop import palette
from gputop.feed.budget import BudgetLoader, BudgetPageData
from gputop.pages.page import Page
from gputop.render import numbers
from gputop.render.bars import apportion, stacked_bar
from gputop.render.rows import Row, clip, left, right, row_width, shorten, spread, wrap
from gputop.widgets import plots
from gputop_analysis.budget import LINES, Budget
from gputop_analysis.text import counted

NAME, FIGURES = 24, 20
RANKS_WIDTH = 9


def draw(page: BudgetPageData, width: int, height: int, chosen: int = 0, mono: bool = False) -> list[Row]:
    """All rows of the page; ``chosen`` is the number of the line that is explained."""
    found = page.budget
    name = list(LINES)[chosen]
    rows = [headline(page, width), *([session(page, width)] if height >= 20 else [])]
    thick = 2 if height >= 26 else int(height >= 20)
    rows += [stacked_bar(list(found.lines_ns.values()), _styles(), _letters(), width, mono)] * thick
    rows += [[]] * (height >= 26)
    rows += waterfall(found, width, chosen, mono)[: len(LINES) + (2 if height >= 20 else 1)]
    rows += [[]] * (height >= 22)
    rows += meaning(name, width)
    if len(found.ranks) > 1 and (room := height - len(rows) - 1) >= 3:
        rows += [[], *by_rank(found, name, width, room - 1)]
    return rows


def _styles() -> list[str]:
    return [palette.BUDGET[name].style for name in LINES]


def _letters() -> list[str]:
    return [palette.BUDGET[name].letter for name in LINES]


def headline(page: BudgetPageData, width: int) -> Row:
    """Step time, how much of it is useful, and how much of the hardware that uses."""
    found = page.budget
    total = found.wall_ns / 1e6 / max(found.steps, 1)
    row: Row = [(numbers.percent(found.share("useful_compute")), "bold good"), (" useful of ", "muted")]
    row += [(numbers.duration_ms(total), "bold text"), (" a step", "muted")]
    for name, value in (("MFU", found.mfu), ("HFU", found.hfu)):
        row += [(f"   {name} ", "muted"), (numbers.percent(value, 1), "text")] if value is not None else []
    end = page.of if found.mfu is not None else f"no MFU: {found.compute_anchor}"
    return spread(row, [(shorten(end, width - row_width(row) - 2), "muted")], width)


def session(page: BudgetPageData, width: int) -> Row:
    """How much of the time since the start went into steps that count, where the rest went, and what it all draws."""
    row: Row = []
    if (found := page.goodput) is not None:
        whole = numbers.span(found.session_ns / 1e9)
        row += [(numbers.percent(found.goodput), "bold good"), (" goodput of ", "muted"), (whole, "text")]
        lost = sorted(
            ((ns, part) for part, ns in found.parts_ns.items() if part != "productive" and ns >= 5e8), reverse=True
        )
        said = ", ".join(f"{part.replace('_', ' ')} {numbers.span(ns / 1e9)}" for ns, part in lost[:3])
        row += [(f"   {said}", "muted")] if said else []
    if (drawn := page.energy) is not None:
        each = "" if drawn.joules_per_sample is None else f", {numbers.scalar(drawn.joules_per_sample)} J a sample"
        row = spread(row, [(f"{numbers.scalar(drawn.watts)} W{each}", "text")], width)
    return clip(row, width)


def waterfall(found: Budget, width: int, chosen: int, mono: bool = False) -> list[Row]:
    """One line each: name, milliseconds, share, and a bar that begins where the line above ended."""
    cells = width - NAME - FIGURES
    total = found.wall_ns / 1e6 / max(found.steps, 1)
    digits = numbers.digits_for(total)
    rows: list[Row] = [[(left("", NAME) + right("ms a step", 11) + right("share", 7), "muted")]]
    widths = apportion(list(found.lines_ns.values()), cells)
    start = 0
    for index, (name, cell_count) in enumerate(zip(LINES, widths, strict=True)):
        ground = "/cursor" if index == chosen else ""
        look = palette.BUDGET[name]
        used = found.lines_ns[name] > 0
        ms = numbers.ms_column(found.ms_per_step(name), digits) if used else "–"
        share = numbers.percent(found.share(name)) if used else ""
        row: Row = [((look.letter if mono else "■") + " ", look.style + ground if used else "track" + ground)]
        row += [(left(LINES[name].title, NAME - 2), ("text" if used else "muted") + ground)]
        row += [(right(ms, 11) + right(share, 7) + "  ", ("text" if used else "muted") + ground)]
        shown = max(cell_count, int(used))
        start = min(start, cells - shown)
        row += [(("·" if used else " ") * start, "track"), (("━" if not mono else look.letter) * shown, look.style)]
        rows.append(row)
        start += cell_count
    figures = right(numbers.ms_column(total, digits), 11) + right("100 %", 7) + "  "
    rows.append([(left("  wall time", NAME), "muted"), (figures, "bold text")])
    return rows


def meaning(name: str, width: int) -> list[Row]:
    """What the line counts, and the columns it is read from."""
    line = LINES[name]
    rows: list[Row] = [plots.ruled(line.title, [("↑↓ another line", "muted")], width)]
    rows += [[(text, "text")] for text in wrap(line.text, width)]
    return [*rows, *([(text, "muted")] for text in wrap(f"read from {line.source}", width))]


def by_rank(found: Budget, name: str, width: int, most: int) -> list[Row]:
    """The ranks that have most of this line, milliseconds a step."""
    values = {one.rank: one.lines_ns[name] / 1e6 / max(one.steps, 1) for one in found.ranks}
    order = sorted(values, key=lambda rank: (-values[rank], rank))[: max(most - 1, 1)]
    top = max(values.values()) or 1.0
    digits = numbers.digits_for(top)
    title = f"{LINES[name].title} by rank" + (", the largest" if len(order) < len(values) else "")
    rows: list[Row] = [plots.ruled(title, [], width)]
    for rank in order:
        cells = width - RANKS_WIDTH - 11
        full = round(values[rank] / top * cells)
        row: Row = [(left(f"rank {rank}", RANKS_WIDTH), "text"), ("━" * full, palette.BUDGET[name].style)]
        figure = right(numbers.ms_column(values[rank], digits), 11)
        rows.append([*row, ("─" * (cells - full), "track"), (figure, "text")])
    return rows


class BudgetPage(Page):
    """The budget of the run, with a cursor on its lines."""

    key = "8"
    title = "Efficiency budget"
    reads = BudgetPageData
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
        return draw(page, width, height, self.cursor, self.mono)

    def move(self, step: int) -> None:
        self.cursor = min(max(self.cursor + step, 0), len(LINES) - 1)
        self.redraw()
