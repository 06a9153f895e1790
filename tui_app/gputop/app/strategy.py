"""The strategy screen alone, without a run: what ``gputop plan`` opens in a terminal."""

from __future__ import annotations

from textual.screen import Screen

from gputop.app.alone import AloneApp
from gputop.feed.planning import Ask, first_ask
from gputop.screens.strategy import StrategyScreen


class StrategyApp(AloneApp):
    """The planner."""

    def __init__(self, ask: Ask | None = None):
        super().__init__()
        self._ask = ask or first_ask()

    def get_default_screen(self) -> Screen[None]:
        return StrategyScreen(self._ask)


def run_strategy() -> None:
    """Show it until the user leaves."""
    StrategyApp().run_here()
