"""The strategy screen alone, without a run: what ``gputop plan`` opens in a terminal."""

from __future__ import annotations

from textual.screen import Screen

from gputop.app.alone import AloneApp
from gputop.feed.planning import Ask
from gputop.screens.strategy import StrategyScreen

FIRST_MODEL = "llama-3-8b"


class StrategyApp(AloneApp):
    """The planner."""

    def __init__(self, ask: Ask | None = None):
        super().__init__()
        self._ask = ask or first_ask()

    def get_default_screen(self) -> Screen[None]:
        return StrategyScreen(self._ask)


def first_ask() -> Ask:
    """What is shown before anything is chosen: the GPUs of `.gputop.toml`, else 16 of a common kind."""
    from gputop.fleet import FleetError, load
    from gputop_analysis.catalog import model

    try:
        have = load().have[:1]
    except FleetError:
        have = ()
    ask = Ask(model(FIRST_MODEL))
    return ask.given("gpu", have[0].gpu).given("gpus", have[0].count) if have else ask


def run_strategy(ask: Ask | None = None) -> None:
    """Show it until the user leaves."""
    StrategyApp(ask).run()
