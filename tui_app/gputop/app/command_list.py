"""Textual's command palette in the app's order, without its picture sign and its crash on a page
key before its list's layout.
"""

from __future__ import annotations

from typing import Any

from rich.segment import Segment
from textual.app import ComposeResult
from textual.command import CommandInput, CommandList, CommandPalette, DiscoveryHit, Hits
from textual.containers import Horizontal, Vertical
from textual.strip import Strip
from textual.system_commands import SystemCommandsProvider
from textual.widgets import LoadingIndicator
from textual.widgets.option_list import Option

from gputop.app import theme
from gputop.widgets.key_line import KeyLine


class Commands(SystemCommandsProvider):
    """The app's commands, until something is typed in the app's order: what helps now first."""

    async def discover(self) -> Hits:
        for name, words, callback, listed in self.app.get_system_commands(self.screen):
            if listed:
                yield DiscoveryHit(name, callback, help=words)


class Hitlist(CommandList):
    """With a mark before the chosen one, which colour alone does not show everywhere."""

    def _get_option_render(self, option: Option, style: Any) -> list[Strip]:
        strips = super()._get_option_render(option, style)
        if option is not self.highlighted_option or not strips:
            return strips
        mark = Segment("› ", style.rich_style)
        return [Strip([mark, *strips[0].crop(mark.cell_length)]), *strips[1:]]


class Palette(CommandPalette):
    """Commands by name, in place of all below the header, the keys of the screen included."""

    DEFAULT_CSS = """
    Palette > #--container { height: 1fr; }
    Palette #--input CommandInput, Palette #--input CommandInput:focus {
        height: 1; margin-bottom: 1; border: none; padding: 0 2;
    }
    Palette #--results { overlay: none; height: 1fr; }
    Palette CommandList { max-height: 100%; border: none; }
    Palette LoadingIndicator { display: none; }
    Palette > KeyLine { dock: bottom; width: 100%; }
    Palette.-colourless Input > .input--cursor { text-style: reverse !important; }
    """

    def __init__(self, **more: Any):
        super().__init__(placeholder="an action, a run, a rank or a finding", **more)
        self.set_class(theme.colourless(), "-colourless")

    def compose(self) -> ComposeResult:
        """As the base class has it, without its picture sign."""
        with Vertical(id="--container"):
            with Horizontal(id="--input"):
                yield CommandInput(placeholder=self._placeholder, select_on_focus=False)
            with Vertical(id="--results"):
                yield Hitlist()
                yield LoadingIndicator()
        yield KeyLine(("enter", "run"), ("esc", "close"))

    def _action_command_list(self, action: str) -> None:
        try:
            super()._action_command_list(action)
        except (
            KeyError
        ):  # the list knows no line of its first option yet (textual 8.2.8, OptionList._move_page)
            return
