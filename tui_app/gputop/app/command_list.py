"""Textual's command palette, without its picture sign and its crash on a page key before its
list's layout.
"""

from __future__ import annotations

from typing import Any

from textual.command import CommandPalette


class Palette(CommandPalette):
    """Commands by name."""

    DEFAULT_CSS = """
    Palette SearchIcon { display: none; }
    Palette #--input CommandInput { padding-left: 1; }
    """

    def __init__(self, **more: Any):
        super().__init__(placeholder="an action, a run, a rank or a finding", **more)

    def _action_command_list(self, action: str) -> None:
        try:
            super()._action_command_list(action)
        except (
            KeyError
        ):  # the list knows no line of its first option yet (textual 8.2.8, OptionList._move_page)
            return
