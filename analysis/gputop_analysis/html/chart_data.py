"""The figures of a chart for the page's script: crosshair and legend read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

import numpy as np

from gputop_analysis.html.svg import Plot
from gputop_analysis.view import Array


def attribute(
    plot: Plot, xs: Array, series: dict[str, Array], *, unit: str, stacked: bool = False
) -> str:
    """``data-chart``: the drawing's rectangle, both scales, and the values of each series."""
    names = ("width", "height", "left", "right", "top", "bottom")
    scales = ("x_from", "x_to", "y_from", "y_to")
    shown = {name: getattr(plot, name) for name in (*names, *scales)} | {
        "unit": unit,
        "stacked": stacked,
        "xs": _numbers(xs),
        "series": [{"name": name, "values": _numbers(row)} for name, row in series.items()],
    }
    return f' data-chart="{escape(json.dumps(shown, separators=(",", ":")))}"'


def _numbers(values: Array) -> Sequence[float | None]:
    """Numbers with five significant digits; None for what is missing."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
