"""The page's charts: stacked areas, lines, a histogram, a grid of ranks."""

from __future__ import annotations

from html import escape
from itertools import pairwise

import numpy as np

from gputop_analysis.html.chart_data import attribute
from gputop_analysis.html.svg import Plot, chart
from gputop_analysis.report.words import figure
from gputop_analysis.text import with_minus
from gputop_analysis.view import Array

WIDE, HALF = 1070, 520
POINTS = 400
"""Points of a line at most; longer series are drawn by each part's extremes."""


def stacked(steps: Array, layers: dict[str, Array], top: float, width: int = WIDE) -> str:
    """ms a step by phase over the steps: ``layers`` by name, from the bottom, cut at ``top``."""
    plot = Plot(width, 250, x_from=float(steps[0]), x_to=float(steps[-1]), y_from=0.0, y_to=top)
    plot = plot.fitted("ms")
    below = np.zeros(len(steps))
    parts = []
    for name, values in layers.items():
        above = below + values
        edge = plot.points(zip(steps, above, strict=True))
        back = plot.points(zip(steps[::-1], below[::-1], strict=True))
        parts.append(f'<polygon data-series="{name}" points="{edge} {back}" fill="var(--{name})"/>')
        below = above
    return chart(
        plot,
        "".join(parts),
        label="phases of a step over the run",
        x_name="step",
        y_unit="ms",
        data=attribute(plot, steps, layers, unit="ms", stacked=True),
    )


def line(
    steps: Array,
    values: Array,
    *,
    unit: str,
    colour: str,
    label: str,
    marks: Array,
    zero: bool = False,
    limits: tuple[float, float] | None = None,
) -> str:
    """One series over the steps, gaps left open, marked points as rings; ``limits`` are the lowest
    and the highest value of the axis where those of the series are not.
    """
    finite = np.isfinite(values)
    low, high = limits or (float(values[finite].min()), float(values[finite].max()))
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    if zero:
        bottom = 0.0
    else:
        bottom = low - room
    plot = Plot(
        HALF,
        190,
        x_from=float(steps[0]),
        x_to=float(max(steps[-1], steps[0] + 1)),
        y_from=bottom,
        y_to=high + room,
    ).fitted(unit)
    drawn = _extremes(steps[finite], values[finite])
    path = (
        f'<polyline points="{plot.points(drawn)}" fill="none" stroke="var(--{colour})" '
        'stroke-width="1.6"'
    )
    rings = []
    for i in marks:
        if np.isfinite(values[i]):
            rings.append(
                _ring(plot, float(steps[i]), value=float(values[i]), label=label, unit=unit)
            )
    inside = path + ' stroke-linejoin="round"/>' + "".join(rings)
    told_steps, told_values = np.array(drawn).T
    return chart(
        plot,
        inside,
        label=f"{label} over the run",
        x_name="step",
        y_unit=unit,
        data=attribute(plot, told_steps, {label: told_values}, unit=unit),
    )


def _extremes(steps: Array, values: Array) -> list[tuple[float, float]]:
    """The points, or the extremes of each part in their order."""
    if len(values) <= POINTS:
        return list(zip(steps.tolist(), values.tolist(), strict=True))
    picked = []
    for part in np.array_split(np.arange(len(values)), POINTS // 2):
        picked += sorted({int(part[np.argmin(values[part])]), int(part[np.argmax(values[part])])})
    return [(float(steps[i]), float(values[i])) for i in picked]


def _ring(plot: Plot, step: float, value: float, label: str, unit: str) -> str:
    title = escape(f"{label} {figure(value)} {unit} at step {step:,.0f}")
    centre = f'cx="{plot.x(step):.1f}" cy="{plot.y(value):.1f}"'
    return (
        f'<circle {centre} r="4.5" fill="none" stroke="var(--critical)" stroke-width="2">'
        f"<title>{title}</title></circle>"
    )


def histogram(edges: Array, counts: Array, marks: dict[str, float]) -> str:
    """Steps by their time; ``marks`` are named times, drawn as lines."""
    plot = Plot(
        HALF,
        190,
        x_from=float(edges[0]),
        x_to=float(edges[-1]),
        y_from=0.0,
        y_to=float(counts.max()) * 1.12,
    ).fitted("")
    total = max(float(counts.sum()), 1.0)
    bars = []
    for (low, high), count in zip(pairwise(edges), counts, strict=True):
        x, width = plot.x(low), max(0.5, plot.x(high) - plot.x(low) - 1)
        y = plot.y(count)
        title = (
            f"{figure(low)} to {figure(high)} ms: {count:,.0f} steps, {100 * count / total:.1f} %"
        )
        area = (
            f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{plot.height - plot.bottom - y:.1f}"'
        )
        bars.append(f'<rect {area} rx="1" fill="var(--backward)"><title>{title}</title></rect>')
    shown = []
    for name, value in marks.items():
        if plot.x_from <= value <= plot.x_to:
            shown.append((name, value))
    lines = []
    for row, (name, value) in enumerate(shown):
        lines.append(_named_line(plot, name, value, row, len(shown)))
    return chart(
        plot, "".join(bars + lines), label="distribution of the step time", x_name="ms", y_unit=""
    )


def _named_line(plot: Plot, name: str, value: float, row: int, rows: int) -> str:
    """A dashed line and its name, which has a row of its own of ``rows`` above all the lines, so
    that neither a name nor a line stands over another.
    """
    x = plot.x(value)
    top = plot.top + 14 * rows
    rule = (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{plot.height - plot.bottom}" '
        'stroke="var(--strong)"'
    )
    side, dx = ("start", 5) if x < 0.8 * plot.width else ("end", -5)
    text = (
        f'<text x="{x + dx:.1f}" y="{plot.top + 9 + 14 * row}" text-anchor="{side}" '
        f'class="halo">{escape(name)}</text>'
    )
    return f'{rule} stroke-dasharray="3 3"/>{text}'


def bar(parts: dict[str, tuple[str, float, str]]) -> str:
    """One bar of shares that add up to 1: colour, share and what the pointer is told, by name."""
    x, drawn = 0.0, []
    for colour, share, title in parts.values():
        width = share * WIDE
        if width >= 0.3:
            area = f'x="{x:.1f}" width="{max(0.3, width - 1):.1f}" y="0" height="30"'
            drawn.append(
                f'<rect {area} fill="var(--{colour})"><title>{escape(title)}</title></rect>'
            )
        if width > 46:
            inside = (
                f'<text x="{x + width / 2:.1f}" y="19" text-anchor="middle" '
                f'class="on">{100 * share:.0f} %</text>'
            )
            drawn.append(inside)
        x += width
    return f'<svg viewBox="0 0 {WIDE} 30" role="img" aria-label="shares">{"".join(drawn)}</svg>'


def grid(ranks: list[int], values: Array, steps: Array, against: str) -> str:
    """Ranks x parts of the run: each above (warm) or below (cool) what it is compared with, -1 to
    1; ``against`` names that.
    """
    if len(ranks) <= 32:
        row = 16
    elif len(ranks) <= 96:
        row = 8
    else:
        row = 4
    height = row * len(ranks) + 30
    plot = Plot(
        WIDE,
        height,
        x_from=float(steps[0]),
        x_to=float(steps[-1]),
        y_from=0.0,
        y_to=1.0,
        top=2,
        bottom=26,
    )
    width = (WIDE - plot.left - plot.right) / values.shape[1]
    cells = []
    for index, rank in enumerate(ranks):
        for column, (step, excess) in enumerate(zip(steps, values[index], strict=True)):
            if not np.isfinite(excess):
                continue
            cell = _cell(
                plot.left + column * width,
                2 + index * row,
                width=width,
                height=row - 1,
                excess=excess,
                where=f"rank {rank}, step {step:,.0f}",
                against=against,
            )
            cells.append(cell)
    every = -(-len(ranks) // 32)
    names = []
    for i, rank in enumerate(ranks):
        if i % every == 0:
            names.append(_rank_name(rank, plot.left - 8, 2 + i * row + row / 2 + 4))
    return chart(
        plot,
        "".join(cells + names),
        label=f"own work of each rank against {against}",
        x_name="step",
        y_unit="",
        y_ticks=False,
    )


def _cell(
    x: float, y: int, *, width: float, height: int, excess: float, where: str, against: str
) -> str:
    title = f"{where}: {with_minus(f'{100 * excess:+.1f}')} % against {against}"
    area = f'x="{x:.1f}" y="{y}" width="{width + 0.2:.1f}" height="{height}"'
    return f'<rect {area} fill="{_heat(excess)}"><title>{title}</title></rect>'


def _rank_name(rank: int, x: float, y: float) -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="end">{rank}</text>'


def _heat(excess: float) -> str:
    """CSS colour of a cell, mixed from the page's own so that it reads on light and dark: nothing
    at 0, full at 30 %.
    """
    share = min(1.0, abs(excess) / 0.30)
    if excess > 0:
        colour = "var(--critical)"
    else:
        colour = "var(--forward)"
    return f"color-mix(in srgb, {colour} {100 * share:.0f}%, var(--inset))"
