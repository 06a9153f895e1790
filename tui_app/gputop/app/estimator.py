"""The estimator alone, without a run: what ``gputop estimate`` opens in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen

from gputop.app.alone import AloneApp
from gputop.feed.examples import first_setup
from gputop.feed.refinement import after_s
from gputop.screens.estimator import EstimatorScreen

if TYPE_CHECKING:
    from gputop.feed.estimator import Tracer
    from gputop_analysis.vram.setup import Setup


class EstimatorApp(AloneApp):
    """The estimator."""

    def __init__(
        self,
        setup: Setup | None = None,
        tracer: Tracer | None = None,
        refine_s: float | None = None,
    ):
        super().__init__()
        self._refine_s = refine_s
        self._setup = setup or first_setup()
        self._tracer = tracer

    def get_default_screen(self) -> Screen[None]:
        return EstimatorScreen(self._setup, self._tracer, refine_s=self._refine_s)


def run_estimator(setup: Setup | None = None) -> None:
    """Show it until the user leaves."""
    EstimatorApp(setup, refine_s=after_s()).run_here()
