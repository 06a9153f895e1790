"""Textual's command palette, without its crash on a page key before its list's layout."""

from __future__ import annotations

from textual.command import CommandPalette


class Palette(CommandPalette):
    """Commands by name."""

    def _action_command_list(self, action: str) -> None:
        try:
            super()._action_command_list(action)
        except (
            KeyError
        ):  # the list knows no line of its first option yet (textual 8.2.8, OptionList._move_page)
            return
