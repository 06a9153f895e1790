"""Sections of charts: the step over the run, its distribution, memory and loss, ranks."""

from __future__ import annotations

from html import escape

from gputop_analysis.html.charts import grid, histogram, line, stacked
from gputop_analysis.html.elements import section, shares
from gputop_analysis.html.series import chart_top, phases_over_steps, step_times
from gputop_analysis.rank_excess import most_excess, rank_excess, reference
from gputop_analysis.report.build import Report
from gputop_analysis.report.trends import trends
from gputop_analysis.report.words import wait_note
from gputop_analysis.step_parts import parts_of
from gputop_analysis.text import capitalised, counted, ms

RANKS_AT_MOST = 96
"""Ranks that are drawn; beyond it those of most own work: they hold others up."""
_COLOURS = {
    "step time": "backward",
    "resident memory": "forward",
    "peak allocated": "forward",
    "loss": "data",
    "gradient norm": "comm",
    "learning rate": "optimizer",
}


def phases(report: Report) -> str:
    """Section on the time of a step by phase: over the run, and in total."""
    shown = sorted((p for p in parts_of(report.summary) if p.share > 0), key=lambda p: -p.share)
    if not shown:
        return ""
    rows = [(p.name, p.name, p.share, (ms(p.mean_ms), ms(p.p50_ms), ms(p.p95_ms))) for p in shown]
    table = shares(("phase", "mean ms", "p50", "p95"), rows)
    note = "Mean over all ranks. The parts add up to the wall time of a step exactly"
    if what_wait_is := wait_note(shown):
        note += f"; {what_wait_is}"
    note += "."
    drawn = phases_over_steps(report.view)
    if drawn is None:
        return section("Where the time goes", table, note)
    steps, layers = drawn
    top, cut = chart_top(layers)
    if cut:
        note += " The chart is cut where single parts take several times the usual."
    return section(
        "Where the time goes", legend(list(layers)) + stacked(steps, layers, top) + table, note
    )


def legend(names: list[str]) -> str:
    """A button a phase, which switches it in the chart of its section."""
    keys = "".join(
        f'<button type="button" data-switch="{escape(n)}" style="--c:var(--{n})" '
        f'aria-pressed="true"><span class="key"></span>{escape(n)}</button>'
        for n in names
    )
    return f'<div class="legend">{keys}</div>'


def details(report: Report) -> str:
    """Distribution of the step time beside the trends, two in a row."""
    cards = [_distribution(report)]
    for trend in trends(report.view):
        if trend.name == "learning rate" and trend.is_constant:
            continue  # the section on the run tells it
        first, last = trend.ends
        note = f"first 10 % {first:.4g}, last 10 % {last:.4g} {trend.unit}".rstrip()
        if len(trend.marks) > 1:
            note += f"; {len(trend.marks)} points stand out"
        if len(trend.marks) == 1:
            note += "; 1 point stands out"
        flat = trend.name in ("step time", "resident memory", "peak allocated")
        drawn = line(
            trend.steps,
            trend.values,
            unit=trend.unit,
            colour=_COLOURS[trend.name],
            label=trend.name,
            marks=trend.marks,
            zero=flat,
        )
        cards.append(
            section(
                capitalised(trend.name),
                drawn,
                f"Rank {report.view.ranks[0]}; {note}.",
            )
        )
    return f'<div class="pair">{"".join(cards)}</div>'


def _distribution(report: Report) -> str:
    times = step_times(report.view)
    if times is None:
        return ""
    edges, counts, left_out = times
    s = report.summary
    marks = {
        f"p50 {ms(s.step_time_p50_ms)}": s.step_time_p50_ms,
        f"p95 {ms(s.step_time_p95_ms)}": s.step_time_p95_ms,
    }
    if left_out:
        note = f"All ranks; without the slowest {counted(left_out, 'step')}."
    else:
        note = "All ranks."
    return section("Distribution of the step time", histogram(edges, counts, marks), note)


def rank_grid(report: Report) -> str:
    """Section on the ranks over the run: which one is slower than the others, and when."""
    rank_table = rank_excess(report.view)
    if rank_table is None:
        return ""
    all_ranks, excess, steps = rank_table
    ranks, cells = most_excess(all_ranks, excess, RANKS_AT_MOST)
    against = reference(len(all_ranks))
    note = (
        f"A rank's own work without waiting for others, against {against}: warm is slower, full "
        "colour at 30 %."
    )
    if len(ranks) < len(report.view.ranks):
        note += f" The slowest {len(ranks)} of {counted(len(report.view.ranks), 'rank')}."
    return section("Ranks over the run", grid(ranks, cells, steps, against), note)
