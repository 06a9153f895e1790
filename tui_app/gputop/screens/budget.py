"""The screen of the efficiency budget."""

from __future__ import annotations

from gputop.feed.snapshot import Snapshot
from gputop.pages.budget import BudgetPage
from gputop.screens.page import PageScreen, bindings


class BudgetScreen(PageScreen):
    """All of the wall time."""

    NAME = "budget"
    BINDINGS = bindings(NAME)

    def __init__(self, mode: str, control: bool, snapshot: Snapshot):
        super().__init__(mode, control, snapshot, BudgetPage(id="page"))
