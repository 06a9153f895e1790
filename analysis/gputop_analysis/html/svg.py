"""Scales, axes and marks of the page's charts, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape

from gputop_analysis.report.words import figure

LETTER = 8
"""Width of a label's letter at most, in units of the drawing; a phone draws them larger."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A rectangle to draw in: values of both axes map onto it linearly."""

    width: int
    height: int
    x_from: float
    x_to: float
    y_from: float
    y_to: float
    left: int = 54
    bottom: int = 24
    top: int = 10
    right: int = 8

    def fitted(self, y_unit: str) -> Plot:
        """The same with room for the longest label of its y axis."""
        labels = [_label(value, y_unit) for value in ticks(self.y_from, self.y_to, 4)]
        longest = max((len(label) for label in labels), default=0)
        return replace(self, left=max(self.left, 14 + LETTER * longest))

    def x(self, value: float) -> float:
        """Column of a value."""
        span = (self.x_to - self.x_from) or 1.0
        return self.left + (value - self.x_from) / span * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Row of a value; what lies outside is drawn at the edge."""
        span = (self.y_to - self.y_from) or 1.0
        part = min(1.0, max(0.0, (value - self.y_from) / span))
        return self.height - self.bottom - part * (self.height - self.top - self.bottom)

    def points(self, pairs: Iterable[tuple[float, float]]) -> str:
        """Coordinates for a path or a polyline."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in pairs)


def chart(
    plot: Plot,
    inside: str,
    *,
    label: str,
    x_name: str,
    y_unit: str,
    y_ticks: bool = True,
    data: str = "",
) -> str:
    """A whole chart: axes, what is drawn inside, and a name for screen readers; ``data`` is what
    the page's script tells under the pointer (``chart_data.attribute``).
    """
    size = "wide" if plot.width > 800 else "half"
    parts = [
        f'<div class="chart {size}"><svg viewBox="0 0 {plot.width} {plot.height}" role="img" '
        f'aria-label="{escape(label)}"{data}>'
    ]
    if y_ticks:
        for value in ticks(plot.y_from, plot.y_to, 4):
            parts.append(_y_tick(plot, value, y_unit))
    parts += [inside]
    named = ticks(plot.x_from, plot.x_to, max(2, plot.width // 160))
    parts += [_x_tick(plot, value, x_name, first=value == named[0]) for value in named]
    return "".join((*parts, "</svg></div>"))


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round values between two."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        if math.isfinite(low):
            return [low]
        return []
    rough = span / max(1, count)
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _y_tick(plot: Plot, value: float, unit: str) -> str:
    y = plot.y(value)
    line = (
        f'<line class="grid" x1="{plot.left}" x2="{plot.width - plot.right}" y1="{y:.1f}" '
        f'y2="{y:.1f}"/>'
    )
    return (
        f'{line}<text x="{plot.left - 8}" y="{y + 4:.1f}" '
        f'text-anchor="end">{_label(value, unit)}</text>'
    )


def _x_tick(plot: Plot, value: float, name: str, first: bool) -> str:
    """A number below the axis; the first one says what is counted."""
    x, y = plot.x(value), plot.height - plot.bottom
    if name == "step":
        if first:
            label = f"{name} {value:,.0f}"
        else:
            label = f"{value:,.0f}"
    else:
        label = _label(value, name)
    if x < plot.left + 20:
        anchor = "start"
    elif x > plot.width - 40:
        anchor = "end"
    else:
        anchor = "middle"
    return f'<text x="{x:.1f}" y="{y + 17}" text-anchor="{anchor}">{escape(label)}</text>'


def _label(value: float, unit: str) -> str:
    small = 0 < abs(value) < 1e-4
    if small:
        digits = f"{value:.0e}"
    elif abs(value) >= 1000:
        digits = f"{value:,.0f}"
    else:
        digits = figure(round(value, 10))
    return f"{digits} {unit}".rstrip()
