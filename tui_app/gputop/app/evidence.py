"""Another tool's recording on a screen: ``gputop open PATH`` where PATH is no run."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.widgets import Static

from gputop.app.alone import AloneApp
from gputop_analysis.evidence import Evidence
from gputop_analysis.evidence.text import as_text


class EvidenceApp(AloneApp):
    """The judgement, drawn for the terminal's width and scrolled by the arrow keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "quit"),
        ("escape", "quit", "quit"),
        ("y", "copy", "copy"),
    ]

    def __init__(self, evidence: Evidence) -> None:
        super().__init__()
        self.evidence = evidence

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(id="text", markup=False)

    def on_mount(self) -> None:
        super().on_mount()
        self.title = self.evidence.kind
        self.query_one(VerticalScroll).focus()

    def on_resize(self, event: Resize) -> None:
        """Wrapped anew for the window that there is now; ``size`` still is that of before."""
        self.query_one("#text", Static).update(self._text(event.size.width))

    def _text(self, width: int) -> str:
        return as_text(self.evidence, max(40, width - 2), fancy=True)

    def action_copy(self) -> None:
        """Copy all of it."""
        self.copy_to_clipboard(self._text(self.size.width))


def run_evidence(evidence: Evidence) -> None:
    """Show it until the user leaves."""
    EvidenceApp(evidence).run_here()
