"""Modules as a tree, with their times and bytes."""

from __future__ import annotations

from gputop.feed.layers import LayersLoader, LayersPageData
from gputop.pages.page import Page
from gputop.render import layers
from gputop.render.rows import Row

SORTS = ("order", "time", "backward", "activation", "parameters", "flops", "name")


class LayersPage(Page):
    """One rank's layers; another rank is a key away."""

    key = "l"
    title = "Layers"
    reads = LayersPageData
    rank: int | None = None
    sort = "order"
    folded = True

    def loader(self) -> LayersLoader:
        return LayersLoader(self.rank)

    def note(self) -> Row:
        return [(f"by {self.sort}, ", "muted"), ("s", "accent"), (" sorts", "muted")]

    def content(self, page: object, width: int, height: int) -> list[Row]:
        assert isinstance(page, LayersPageData)
        rows = layers.table(page.layers, width, sort=self.sort, folded=self.folded)
        return [*layers.summary(page.layers, width), [], *rows]

    def step(self, by: int) -> None:
        """Go to the next rank that was watched."""
        page = self.page
        if isinstance(page, LayersPageData) and len(page.ranks) > 1:
            position = page.ranks.index(page.layers.rank) + by
            self.rank = page.ranks[position % len(page.ranks)]

    def sort_next(self) -> None:
        """Sort by the next column."""
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.redraw()

    def turn_fold(self) -> None:
        """Show alike layers one by one, or as one again."""
        self.folded = not self.folded
        self.redraw()
