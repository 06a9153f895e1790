"""The screen of all ranks."""

from __future__ import annotations

from gputop.feed.snapshot import Snapshot
from gputop.pages.ranks import RanksPage
from gputop.screens.page import PageScreen, bindings


class RanksScreen(PageScreen):
    """Sorted by wait at first."""

    NAME = "ranks"
    BINDINGS = bindings(NAME)

    def __init__(self, mode: str, control: bool, snapshot: Snapshot, rank: int | None = None):
        self.table = RanksPage(id="page", rank=rank)
        super().__init__(mode, control, snapshot, self.table)

    def action_sort(self) -> None:
        self.table.sort_next()

    def action_worst(self) -> None:
        if not self.table.turn_worst():
            self.notify("no rank stands out: all of them are shown")

    def action_reverse(self) -> None:
        self.table.turn_round()
