"""Loss, gradient norm, learning rate, step time and memory below each other, on one axis of steps."""

from __future__ import annotations

from gputop.feed.numerics import NumericsLoader, NumericsPageData
from gputop.feed.plots import Chart
from gputop.pages.page import Page
from gputop.render import chart, numbers
from gputop.render.rows import Row, shorten, wrap
from gputop.widgets import plots

COMPACT, ROOMY = 3, 5
"""Rows of a chart: without a title line, and from which on it gets one."""
TOLD = 3
"""Instabilities that are told in words."""
SHORT = {"gradient norm": "grad", "learning rate": "lr", "loss scale": "scale", "step time": "step ms"}
TREND = {"falling": "good", "still": "medium", "rising": "high", "unclear": "muted"}


def draw(page: NumericsPageData, width: int, height: int) -> list[Row]:
    """What happened in words, then the charts."""
    words = in_words(page, width, 2 if height < 24 else TOLD)
    each, spare = divmod(max(height - len(words) - 1, COMPACT * len(page.charts)), max(len(page.charts), 1))
    rows = words
    for index, one in enumerate(page.charts):
        rows = rows + _stacked(one, page, width, each + (index < spare))
    return [*rows, chart.axis_row(page.steps, width)]


def _stacked(one: Chart, page: NumericsPageData, width: int, height: int) -> list[Row]:
    if height < ROOMY:
        name = SHORT.get(one.title, one.title.replace("memory ", "")[:8])
        return chart.draw(one, width, height, page.steps, axis=False, name=name)
    head = plots.ruled(f"{one.title}, {one.unit}" if one.unit else one.title, _now(one), width)
    return [head, *chart.draw(one, width, height - 1, page.steps, axis=False)]


def _now(one: Chart) -> Row:
    return [("now ", "muted"), (numbers.scalar(one.lines[-1].values[-1]), "text"), (f" {one.unit}".rstrip(), "muted")]


def in_words(page: NumericsPageData, width: int, most: int) -> list[Row]:
    """Where the loss goes, what jumped together, and what jumped alone."""
    rows: list[Row] = []
    if page.trend is not None:
        kind, figures = page.trend
        word = {"still": "standing still"}.get(kind, kind)
        rows.append([("loss ", "muted"), (word, f"bold {TREND[kind]}"), (shorten(f"  {figures}", width - 20), "muted")])
    for told in page.instabilities[:most]:
        first, *more = wrap(told, width - 2)
        rows.append([("✖ ", "critical"), (first, "text")])
        rows += [[("  " + line, "text")] for line in more[:1]]
    if not page.instabilities and page.spikes:
        rows.append([("▲ ", "high"), (shorten("; ".join(page.spikes), width - 2), "text")])
    if not page.instabilities and not page.spikes:
        rows.append([("● ", "good"), ("nothing jumps: no value stands out from the 100 before it", "muted")])
    return rows


class NumericsPage(Page):
    """The numbers of one rank; the next rank is a key away."""

    key = "9"
    title = "Numerics"
    reads = NumericsPageData
    rank: int | None = None

    def loader(self) -> NumericsLoader:
        return NumericsLoader(self.rank)

    def note(self) -> Row:
        page = self.page
        if not isinstance(page, NumericsPageData) or len(page.ranks) < 2:
            return []
        return [(f"rank {page.rank} of {len(page.ranks)}, ", "muted"), ("tab", "accent"), (" next", "muted")]

    def content(self, page: object, width: int, height: int) -> list[Row]:
        assert isinstance(page, NumericsPageData)
        return draw(page, width, height)

    def step(self, by: int) -> None:
        """Go to the next rank."""
        page = self.page
        if isinstance(page, NumericsPageData) and len(page.ranks) > 1:
            self.rank = page.ranks[(page.ranks.index(page.rank) + by) % len(page.ranks)]
