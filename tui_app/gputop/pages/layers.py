"""Modules as a tree, with their times and bytes."""

from __future__ import annotations

from gputop.feed.layers import LayersLoader, LayersPageData
from gputop.pages.page import Page
from gputop.render import layers
from gputop.render.rows import Row

SORTS = ("order", "time", "backward", "activation", "parameters", "flops", "name")

OF_THE_TABLE = frozenset({"sort_layers", "fold_layers", "worst"})
OF_SEVERAL_RANKS = frozenset({"layers_rank"})


class LayersPage(Page):
    """One rank's layers; another rank is a key away."""

    key = "l"
    title = "Layers"
    reads = LayersPageData
    rank: int | None = None
    sort = "order"
    folded = True
    only_worst = False
    """Whether only layers are shown that take far longer than their like."""

    def __init__(self, asked: bool = False, *, id: str | None = None):
        super().__init__(id=id)
        self.asked = asked
        """Whether the training was asked to watch its layers."""

    def loader(self) -> LayersLoader:
        return LayersLoader(self.rank, self.asked)

    def idle(self) -> frozenset[str]:
        if not isinstance(self.page, LayersPageData):
            return OF_THE_TABLE | OF_SEVERAL_RANKS
        return OF_SEVERAL_RANKS if len(self.page.ranks) < 2 else frozenset()

    def note(self) -> Row:
        if not isinstance(self.page, LayersPageData):
            return []
        if self.only_worst:
            return [("only what stands out, ", "accent"), ("w", "accent"), (" all", "muted")]
        return [(f"by {self.sort}, ", "muted"), ("s", "accent"), (" sorts", "muted")]

    def content(self, page: object, width: int, height: int) -> list[Row]:
        assert isinstance(page, LayersPageData)
        only = layers.standing_out(page.layers) if self.only_worst else None
        rows = layers.table(page.layers, width, sort=self.sort, folded=self.folded, only=only)
        head = [*layers.summary(page.layers, width), []]
        self.kept = len(head) + 1  # the table's heading stays
        return [*head, *rows]

    def step(self, by: int) -> bool:
        """Go to the next rank that was watched. Returns whether there is one."""
        page = self.page
        if not isinstance(page, LayersPageData) or len(page.ranks) < 2:
            return False
        position = page.ranks.index(page.layers.rank) + by
        self.rank = page.ranks[position % len(page.ranks)]
        return True

    def sort_next(self) -> None:
        """Sort by the next column."""
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        self.redraw()

    def turn_worst(self) -> bool:
        """Show only layers that stand out, or all again. Returns whether any does."""
        page = self.page
        any_odd = isinstance(page, LayersPageData) and bool(layers.standing_out(page.layers))
        self.only_worst = any_odd and not self.only_worst
        self.first = 0
        self.redraw()
        return any_odd

    def turn_fold(self) -> None:
        """Show alike layers one by one, or as one again."""
        self.folded = not self.folded
        self.redraw()
