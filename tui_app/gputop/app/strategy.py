"""The strategy screen alone, without a run: what ``gputop plan`` opens in a terminal."""

from __future__ import annotations

from textual.app import App
from textual.screen import Screen

from gputop.app import theme
from gputop.feed.planning import Ask
from gputop.screens.strategy import StrategyScreen

FIRST_MODEL = "llama-3-8b"


class StrategyApp(App[None]):
    """One screen."""

    TITLE = "gputop"
    CSS = "Toast { background: $surface; }"

    def __init__(self, ask: Ask | None = None):
        super().__init__()
        self._ask = ask or first_ask()
        for item in theme.themes():
            self.register_theme(item)
        self.theme = theme.preferred()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        current = self.current_theme
        return theme.variables(current.dark, current.ansi)

    def get_default_screen(self) -> Screen[None]:
        return StrategyScreen(self._ask)

    def on_page_closed(self) -> None:
        self.exit()

    def action_help(self) -> None:
        from gputop.screens import texts
        from gputop.screens.dialog import TextDialog

        body = texts.help_text("live", False, self.theme_variables, StrategyScreen.NAME)
        self.push_screen(TextDialog("Keys", body))

    def action_copy(self) -> None:
        screen = self.screen_stack[0]
        assert isinstance(screen, StrategyScreen)
        self.copy_to_clipboard(screen.copy_text())
        self.notify("copied the command")


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
