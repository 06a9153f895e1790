"""One line to type what to look for in the output."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from gputop.screens.typed import Typed


class SearchDialog(Typed, ModalScreen[str | None]):
    """Returns the words, or None when it is cancelled."""

    DEFAULT_CSS = """
    SearchDialog { align: center bottom; background: transparent; }
    SearchDialog > Input, SearchDialog > Input:focus {
        width: 1fr; margin: 0 1 1 1; border: round $role-accent; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", show=False)]

    def __init__(self, needle: str):
        super().__init__()
        self._needle = needle

    def compose(self) -> ComposeResult:
        box = Input(
            self._needle,
            placeholder="search the output, enter for the hit above",
            select_on_focus=True,
        )
        box.border_title = "Search"
        yield box

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
