"""The list of runs alone: what ``gputop open`` without a run opens in a terminal."""

from __future__ import annotations

from pathlib import Path

from textual.screen import Screen

from gputop.app.alone import AloneApp
from gputop.feed.clock import Clock, SystemClock
from gputop.messages import RunAsked
from gputop.screens.runs import RunsScreen


class RunsApp(AloneApp):
    """The runs, and above them the comparison of two; ``picked`` is the run to open."""

    def __init__(self, at: Path | None = None, clock: Clock | None = None):
        super().__init__()
        self.picked: Path | None = None
        self._at = at
        self._clock = clock or SystemClock()

    def get_default_screen(self) -> Screen[None]:
        return RunsScreen(self._clock, self._at)

    def on_run_asked(self, message: RunAsked) -> None:
        self.picked = message.run_dir
        self.exit()


def run_runs(at: Path | None = None) -> Path | None:
    """Show the runs, the cursor on ``at``. Returns the run the user opened, None if left."""
    app = RunsApp(at)
    app.run_here()
    return app.picked
