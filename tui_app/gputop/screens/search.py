"""One line to type what to look for in the output."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gputop.screens.typed import Typed
from gputop.widgets.key_line import KeyLine


class SearchDialog(Typed, ModalScreen[str | None]):
    """Returns the words, or None when it is cancelled. It stands in the footer's line: nothing of
    what is searched is hidden, and no key is offered that would only be typed.
    """

    DEFAULT_CSS = """
    SearchDialog { align: center bottom; background: transparent; }
    SearchDialog > Horizontal { height: 1; background: $background; }
    SearchDialog Static { width: auto; padding: 0 1; color: $role-accent; text-style: bold; }
    SearchDialog Input, SearchDialog Input:focus {
        width: 1fr; height: 1; border: none; padding: 0; background: $background;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", show=False)]

    def __init__(self, needle: str):
        super().__init__()
        self._needle = needle

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("/", markup=False)
            yield Input(self._needle, placeholder="search the output", select_on_focus=True)
            yield KeyLine(("enter", "hit above"), ("esc", "close"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
