"""Says on the screen when the command waits for something to be typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputop.app.source import Source
from gputop.output.ansi import resolve_text

if TYPE_CHECKING:
    from textual.app import App

_STAYS_S = 24 * 3600.0
_SHOWN = 60


class InputWatch:
    """Looks at each tick; a wait that two looks in a row see is told, once."""

    def __init__(self, source: Source):
        self._control = source.control if source.mode == "live" else None
        self._looks = 0
        self._told = False
        self._prompt = ""

    def look(self, lines: Sequence[str]) -> None:
        """In a worker thread: is somebody waiting, and after which line of output?"""
        if self._control is None or not self._control.waits_for_input():
            self._looks = 0
            return
        self._looks += 1
        self._prompt = next(
            (text for raw in reversed(lines[-5:]) if (text := resolve_text(raw).strip())), ""
        )

    def tell(self, app: App) -> None:
        """Show what was found, or take it away."""
        if self._looks >= 2 and not self._told:
            self._told = True
            prompt = f": {self._prompt[-_SHOWN:]}" if self._prompt else ""
            app.notify(
                f"press I to hand it the terminal, Ctrl-] to come back{prompt}",
                title="the command waits for input",
                severity="warning",
                timeout=_STAYS_S,
                markup=False,
            )
        elif self._looks == 0 and self._told:
            self.forget()
            app.clear_notifications()

    def forget(self) -> None:
        """Tell again when it waits again."""
        self._looks = 0
        self._told = False
