"""Textual's command palette in the app's order, without its picture sign and its crash on a page
key before its list's layout.
"""

from __future__ import annotations

from typing import Any

from textual.command import CommandPalette, DiscoveryHit, Hits
from textual.system_commands import SystemCommandsProvider

from gputop.app import theme


class Commands(SystemCommandsProvider):
    """The app's commands, until something is typed in the app's order: what helps now first."""

    async def discover(self) -> Hits:
        for name, words, callback, listed in self.app.get_system_commands(self.screen):
            if listed:
                yield DiscoveryHit(name, callback, help=words)


class Palette(CommandPalette):
    """Commands by name.

    Without colour the chosen one is underlined: textual 8.2.8 leaves ``reverse`` out of what it
    draws an option with (``Widget.get_visual_style``).
    """

    DEFAULT_CSS = """
    Palette SearchIcon { display: none; }
    Palette #--input CommandInput { padding-left: 1; }
    Palette.-colourless Input > .input--cursor { text-style: reverse !important; }
    Palette.-colourless CommandList > .option-list--option-highlighted {
        text-style: underline !important;
    }
    """

    def __init__(self, **more: Any):
        super().__init__(placeholder="an action, a run, a rank or a finding", **more)
        self.set_class(theme.colourless(), "-colourless")

    def _action_command_list(self, action: str) -> None:
        try:
            super()._action_command_list(action)
        except (
            KeyError
        ):  # the list knows no line of its first option yet (textual 8.2.8, OptionList._move_page)
            return
