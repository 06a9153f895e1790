"""A plot of plotext's in the room that it has."""

from __future__ import annotations

from collections.abc import Callable

from textual_plotext import PlotextPlot


class FittedPlot(PlotextPlot):
    """Is drawn anew when its room has changed, which the rows below it take from it."""

    def __init__(self, draw: Callable[[], None]):
        super().__init__()
        self._draw = draw

    def on_resize(self) -> None:
        self._draw()
