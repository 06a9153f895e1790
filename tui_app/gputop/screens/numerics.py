"""The screen of the training's own numbers."""

from __future__ import annotations

from gputop.feed.snapshot import Snapshot
from gputop.messages import PageWanted
from gputop.pages.numerics import NumericsPage
from gputop.screens.page import PageScreen, bindings


class NumericsScreen(PageScreen):
    """One rank; Tab goes to the next one."""

    NAME = "numerics"
    BINDINGS = bindings(NAME)

    def __init__(self, mode: str, control: bool, snapshot: Snapshot):
        self.numerics = NumericsPage(id="page")
        super().__init__(mode, control, snapshot, self.numerics)

    def action_next_rank(self) -> None:
        self._step(1)

    def action_previous_rank(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        self.numerics.step(by)
        self.post_message(PageWanted())
