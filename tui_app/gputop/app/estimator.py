"""The estimator alone, without a run: what ``gputop estimate`` opens in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import App
from textual.screen import Screen

from gputop.app import theme
from gputop.screens.estimator import EstimatorScreen

if TYPE_CHECKING:
    from gputop.feed.estimator import Tracer
    from gputop_analysis.vram.setup import Setup

FIRST = 1
"""Index of the example that is shown first."""


class EstimatorApp(App[None]):
    """One screen."""

    TITLE = "gputop"
    CSS = "Toast { background: $surface; }"

    def __init__(self, setup: Setup | None = None, tracer: Tracer | None = None):
        super().__init__()
        self._setup = setup or first_setup()
        self._tracer = tracer
        for item in theme.themes():
            self.register_theme(item)
        self.theme = theme.preferred()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        current = self.current_theme
        return theme.variables(current.dark, current.ansi)

    def get_default_screen(self) -> Screen[None]:
        return EstimatorScreen(self._setup, self._tracer)

    def on_page_closed(self) -> None:
        self.exit()

    def action_help(self) -> None:
        from gputop.screens import texts
        from gputop.screens.dialog import TextDialog

        body = texts.help_text("live", False, self.theme_variables, EstimatorScreen.NAME)
        self.push_screen(TextDialog("Keys", body))

    def action_copy(self) -> None:
        screen = self.screen_stack[0]
        assert isinstance(screen, EstimatorScreen)
        self.copy_to_clipboard(screen.copy_text())
        self.notify("copied the command")


def first_setup() -> Setup:
    """What is shown before anything is chosen."""
    from gputop.api import shape_of
    from gputop.feed.examples import EXAMPLES
    from gputop_analysis.vram.options import setup_of

    return setup_of(shape_of(EXAMPLES[FIRST].model), EXAMPLES[FIRST].values)


def run_estimator(setup: Setup | None = None) -> None:
    """Show it until the user leaves."""
    EstimatorApp(setup).run()
