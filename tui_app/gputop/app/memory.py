"""The screen of an allocator snapshot, without a run: ``gputop open`` and ``gputop memory
--screen``.
"""

from __future__ import annotations

from textual.screen import Screen

from gputop.app.alone import AloneApp
from gputop.screens.memory import MemoryScreen
from gputop_analysis.snapshots.analyse import Memory


class MemoryApp(AloneApp):
    """One snapshot, beside another one or alone."""

    def __init__(self, memory: Memory, before: Memory | None = None):
        super().__init__()
        self._memory = memory
        self._before = before

    def get_default_screen(self) -> Screen[None]:
        return MemoryScreen(self._memory, self._before)

    def action_copy(self) -> None:
        """Copy the table that is shown."""
        screen = self._page
        if isinstance(screen, MemoryScreen):
            self.copy_to_clipboard(screen.copy_text())
            self.notify("copied the table")


def run_memory(memory: Memory, before: Memory | None = None) -> None:
    """Show it until the user leaves."""
    MemoryApp(memory, before).run_here()
