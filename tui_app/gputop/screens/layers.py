"""The screen of the model's layers."""

from __future__ import annotations

from gputop.feed.snapshot import Snapshot
from gputop.messages import PageWanted
from gputop.pages.layers import LayersPage
from gputop.screens.page import PageScreen, bindings


class LayersScreen(PageScreen):
    """One rank; Tab goes to the next one."""

    NAME = "layers"
    BINDINGS = bindings(NAME)

    def __init__(self, mode: str, control: bool, snapshot: Snapshot, asked: bool = False):
        self.table = LayersPage(asked, id="page")
        super().__init__(mode, control, snapshot, self.table)

    def action_layers_rank(self) -> None:
        if self.table.step(1):
            self.post_message(PageWanted())
        else:
            self.notify("no other rank was watched")

    def action_sort_layers(self) -> None:
        self.table.sort_next()

    def action_worst(self) -> None:
        if not self.table.turn_worst():
            self.notify("no layer takes far longer than its like: all of them are shown")

    def action_fold_layers(self) -> None:
        self.table.turn_fold()
