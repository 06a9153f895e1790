"""Keys that are typed faster than screens come and go: what every app of ours does about them."""

from __future__ import annotations

from typing import TypeVar

from textual.app import App
from textual.command import CommandPalette
from textual.events import Event, InputEvent

Result = TypeVar("Result")


class LeavingApp(App[Result]):
    """Between ``exit`` and the end, screens are being taken down: a key must not open another one there."""

    async def on_event(self, event: Event) -> None:
        leaving = self._exit or not self._screen_stack
        if not (leaving and isinstance(event, InputEvent)):
            await super().on_event(event)

    def action_command_palette(self) -> None:
        from gputop.app.command_list import Palette

        if self.use_command_palette and not isinstance(self.screen, CommandPalette):
            self.push_screen(Palette(id="--command-palette"))
