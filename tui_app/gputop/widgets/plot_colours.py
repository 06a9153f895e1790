"""Colours of plotext's plots: those of the theme, or a terminal's own sixteen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.widgets import roles

if TYPE_CHECKING:
    from textual.app import App
    from textual_plotext import PlotextPlot

DEFAULT = "default"


def colour(app: App[object], role: str) -> tuple[int, int, int] | int | str:
    """A role's colour as plotext takes it; one of the terminal's own by its number."""
    rich_colour = roles.colour(app, role)
    if rich_colour.is_default:
        return DEFAULT
    if rich_colour.number is not None:
        return rich_colour.number
    red, green, blue = rich_colour.get_truecolor()
    return red, green, blue


def follow_theme(plot: PlotextPlot) -> None:
    """Axes in the terminal's own colours where the theme has those: made into others they would be
    black on black.
    """
    plot.theme = "clear" if colour(plot.app, "text") == DEFAULT else "auto"
