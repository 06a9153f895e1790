"""What our apps do: no colour where none is wanted, no screen by a key typed ahead."""

from __future__ import annotations

from typing import TypeVar

from textual.app import App
from textual.command import CommandPalette
from textual.events import Event, InputEvent, Key
from textual.keys import _character_to_key
from textual.notifications import SeverityLevel

from gputop.app import hangup, theme
from gputop_probes.record.plain import plain_line, plain_text

Result = TypeVar("Result")


class LeavingApp(App[Result]):
    """Between ``exit`` and the end, screens are taken down: a key must not open another."""

    ascii_only = False
    """Whether nothing but ASCII may be written; phases are letters then, as without colour."""

    typed_early = b""
    """Keys that came before the app could read them."""

    def __init__(self) -> None:
        # Textual takes colour out of the terminal's own colours; of any others it makes greys,
        # black upon black here
        super().__init__(ansi_color=theme.colourless() or None)

    def on_load(self) -> None:
        self._ended = hangup.watch()

    def type_early(self) -> None:
        """Type the keys that came early, unless they are a terminal's sequences."""
        if b"\x1b" in self.typed_early:
            return
        for char in self.typed_early.decode(errors="ignore"):
            name = {"\r": "enter", "\n": "enter", "\t": "tab"}.get(char)
            self.post_message(Key(name or _character_to_key(char), char))

    def on_unmount(self) -> None:
        self._ended.set()

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Say it as it is: names and paths in it are no markup and give the terminal no orders."""
        plain, head = plain_text(message), plain_line(title)
        super().notify(plain, title=head, severity=severity, timeout=timeout, markup=markup)

    def export_screenshot(self, *, title: str | None = None, simplify: bool = False) -> str:
        """The screen as SVG, which loads no font from anywhere; ``simplify`` changes nothing."""
        from gputop.app.cells import shown

        return shown(self, title or "gputop")

    async def on_event(self, event: Event) -> None:
        leaving = self._exit or not self._screen_stack
        if not (leaving and isinstance(event, InputEvent)):
            await super().on_event(event)

    def action_command_palette(self) -> None:
        from gputop.app.command_list import Palette

        if self.use_command_palette and not isinstance(self.screen, CommandPalette):
            self.push_screen(Palette(id="--command-palette"))
