"""Loss, gradient norm, learning rate, step time and memory, stacked on one axis of steps."""

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
SHORT = {
    "gradient norm": "grad",
    "learning rate": "lr",
    "loss scale": "scale",
    "step time": "step ms",
}
TREND = {"falling": "good", "still": "medium", "rising": "high", "unclear": "muted"}


def draw(page: NumericsPageData, width: int, height: int) -> list[Row]:
    """Events in words, then the charts."""
    limit = TOLD
    if height < 24:
        limit = 2
    words = in_words(page, width, limit)
    room = max(height - len(words) - 1, COMPACT * len(page.charts))
    chart_height, spare = divmod(room, max(len(page.charts), 1))
    rows = words
    for index, axis_chart in enumerate(page.charts):
        rows = rows + _stacked(axis_chart, page, width, chart_height + (index < spare))
    return [*rows, chart.axis_row(page.steps, width)]


def _stacked(axis_chart: Chart, page: NumericsPageData, width: int, height: int) -> list[Row]:
    if height < ROOMY:
        if axis_chart.title.startswith("memory"):
            name = "mem GiB"
        else:
            name = axis_chart.title
        name = SHORT.get(name, name)
        return chart.draw(axis_chart, width, height=height, steps=page.steps, axis=False, name=name)
    title = axis_chart.title
    if axis_chart.unit:
        title += f", {axis_chart.unit}"
    title = chart.told_log(title, chart.scale_of(axis_chart))
    head = plots.ruled(title, _now(axis_chart), width)
    return [head, *chart.draw(axis_chart, width, height=height - 1, steps=page.steps, axis=False)]


def _now(chart: Chart) -> Row:
    return [
        ("now ", "muted"),
        (numbers.scalar(chart.lines[-1].values[-1]), "text"),
        (f" {chart.unit}".rstrip(), "muted"),
    ]


def in_words(page: NumericsPageData, width: int, limit: int) -> list[Row]:
    """Course of the loss, what jumped together, and what jumped alone."""
    rows: list[Row] = []
    if page.trend is not None:
        judgement, figures = page.trend
        word = {"still": "standing still"}.get(judgement, judgement)
        rows.append(
            [
                ("loss ", "muted"),
                (word, f"bold {TREND[judgement]}"),
                (shorten(f"  {figures}", width - 20), "muted"),
            ]
        )
    for instability in page.instabilities[:limit]:
        first, *more = wrap(instability, width - 2)
        rows.append([("✖ ", "critical"), (first, "text")])
        rows += [[("  " + line, "text")] for line in more[:1]]
    if not page.instabilities and page.spikes:
        rows.append([("▲ ", "high"), (shorten("; ".join(page.spikes), width - 2), "text")])
    if not page.instabilities and not page.spikes:
        words = page.beside or "nothing jumps: no value stands out from the 100 before it"
        rows.append([("● ", "good"), (shorten(words, width - 2), "muted")])
    return rows


class NumericsPage(Page):
    """The numbers of one rank; the next rank is a key away."""

    key = "9"
    title = "Numerics"
    reads = NumericsPageData
    rank: int | None = None

    def loader(self) -> NumericsLoader:
        return NumericsLoader(self.rank)

    def idle(self) -> frozenset[str]:
        several = isinstance(self.page, NumericsPageData) and len(self.page.ranks) > 1
        return frozenset() if several else frozenset({"next_rank"})

    def note(self) -> Row:
        page = self.page
        if not isinstance(page, NumericsPageData) or len(page.ranks) < 2:
            return []
        return [
            (f"rank {page.rank} of {len(page.ranks)}, ", "muted"),
            ("tab", "accent"),
            (" next", "muted"),
        ]

    def content(self, page: object, width: int, height: int) -> list[Row]:
        assert isinstance(page, NumericsPageData)
        return draw(page, width, height)

    def step(self, by: int) -> None:
        """Go to the next rank."""
        page = self.page
        if isinstance(page, NumericsPageData) and len(page.ranks) > 1:
            self.rank = page.ranks[(page.ranks.index(page.rank) + by) % len(page.ranks)]
