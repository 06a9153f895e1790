"""The sections that are charts: the step over the run, its distribution, memory and loss, the ranks."""

from __future__ import annotations

from html import escape

import numpy as np

from gputop_analysis.html.charts import grid, histogram, line, stacked
from gputop_analysis.html.elements import section, shares
from gputop_analysis.html.series import chart_top, phases_over_steps, rank_excess, step_times
from gputop_analysis.report.build import Report
from gputop_analysis.report.trends import trends
from gputop_analysis.report.words import hidden_wait
from gputop_analysis.text import ms

_COLOURS = {
    "step time": "backward",
    "resident memory": "forward",
    "peak allocated": "forward",
    "loss": "data",
    "gradient norm": "comm",
    "learning rate": "optimizer",
}


def phases(report: Report) -> str:
    """Where the time of a step goes: over the run, and in total."""
    shown = sorted((p for p in report.summary.phases if p.share > 0), key=lambda p: -p.share)
    if not shown:
        return ""
    rows = [(p.name, p.name, p.share, (ms(p.mean_ms), ms(p.p50_ms), ms(p.p95_ms))) for p in shown]
    table = shares(("phase", "mean ms", "p50", "p95"), rows)
    note = "Mean over all ranks. The phases add up to the wall time of a step exactly."
    note += f" {said}." if (said := hidden_wait(report.summary)) else ""
    drawn = phases_over_steps(report.view)
    if drawn is None:
        return section("Where the time goes", table, note)
    steps, layers = drawn
    top, cut = chart_top(layers)
    if cut:
        note += " The chart is cut where single parts take several times the usual."
    return section("Where the time goes", _legend(list(layers)) + stacked(steps, layers, top) + table, note)


def _legend(names: list[str]) -> str:
    keys = "".join(f'<span style="--c:var(--{n})"><span class="key"></span>{escape(n)}</span>' for n in names)
    return f'<div class="legend">{keys}</div>'


def details(report: Report) -> str:
    """Distribution of the step time beside the trends, two in a row."""
    cards = [_distribution(report)]
    for one in trends(report.view):
        known = one.values[np.isfinite(one.values)]
        note = f"from {known[0]:.4g} to {known[-1]:.4g} {one.unit}".rstrip()
        note += f"; {len(one.marks)} points stand out" if len(one.marks) > 1 else ""
        note += "; 1 point stands out" if len(one.marks) == 1 else ""
        flat = one.name in ("step time", "resident memory", "peak allocated")
        drawn = line(one.steps, one.values, one.unit, _COLOURS[one.name], one.name, one.marks, zero=flat)
        cards.append(section(one.name[0].upper() + one.name[1:], drawn, f"Rank {report.view.ranks[0]}, {note}."))
    return f'<div class="pair">{"".join(cards)}</div>'


def _distribution(report: Report) -> str:
    found = step_times(report.view)
    if found is None:
        return ""
    edges, counts, left_out = found
    s = report.summary
    marks = {f"p50 {ms(s.step_time_p50_ms)}": s.step_time_p50_ms, f"p95 {ms(s.step_time_p95_ms)}": s.step_time_p95_ms}
    note = f"All ranks; the slowest {left_out:,} steps are not drawn." if left_out else "All ranks."
    return section("Distribution of the step time", histogram(edges, counts, marks), note)


def rank_grid(report: Report) -> str:
    """Which rank is slower than the others, and when."""
    found = rank_excess(report.view)
    if found is None:
        return ""
    ranks, excess, steps = found
    note = "A rank's own work without waiting for others, against the median rank: warm is slower, full colour at 30 %."
    if len(ranks) < len(report.view.ranks):
        note += f" The slowest {len(ranks)} of {len(report.view.ranks)} ranks."
    return section("Ranks over the run", grid(ranks, excess, steps), note)
