"""Keys that are typed on while the app leaves go nowhere."""

from __future__ import annotations

from typing import TypeVar

from textual.app import App
from textual.events import Event, InputEvent

Result = TypeVar("Result")


class LeavingApp(App[Result]):
    """Between ``exit`` and the end, screens are being taken down: a key must not open another one there."""

    async def on_event(self, event: Event) -> None:
        leaving = self._exit or not self._screen_stack
        if not (leaving and isinstance(event, InputEvent)):
            await super().on_event(event)
