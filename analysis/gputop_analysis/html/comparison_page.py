"""Two runs on one page: what the comparison says, then both side by side on the same scales."""

from __future__ import annotations

from html import escape

import numpy as np

from gputop_analysis.diff import Diff
from gputop_analysis.diff.text import headline
from gputop_analysis.html.charts import HALF, line, stacked
from gputop_analysis.html.charts_section import legend
from gputop_analysis.html.comparison import comparison
from gputop_analysis.html.elements import section, table
from gputop_analysis.html.page import whole
from gputop_analysis.html.series import chart_top, phases_over_steps
from gputop_analysis.html.top import tiles
from gputop_analysis.report.build import Report
from gputop_analysis.report.occasion import occasion
from gputop_analysis.report.trends import TrendLine, trends
from gputop_analysis.report.words import recoverable
from gputop_analysis.text import MISSING, capitalised

_SAME_SCALE = "Both on the same scale."
_COLOUR = {
    "regression": "critical",
    "slower": "medium",
    "faster": "good",
    "no difference": "good",
}


def as_comparison_page(a: Report, b: Report, diff: Diff) -> str:
    """The page; every text of the records is escaped."""
    if diff.is_regression:
        colour = "critical"
    else:
        colour = _COLOUR.get(diff.judgement, "info")
    top = (
        '<div class="brand"><b>gputop</b> comparison</div>'
        f'<section class="verdict" style="--c:var(--{colour})"><h1>{escape(headline(diff))}</h1>'
        '<p class="subtitle">A is the baseline, B is judged.</p></section>'
    )
    heads = "".join(_head(letter, report) for letter, report in (("A", a), ("B", b)))
    body = [
        top,
        f'<div class="two">{heads}</div>',
        comparison(diff, of_page=True),
        _beside("Where the time goes", _phases(a, b), _SAME_SCALE),
        *_trends(a, b),
        _beside("Findings", [_findings(a), _findings(b)]),
    ]
    footer = "Made by gputop from the records of both runs."
    return whole(
        f"gputop: {a.record.name} and {b.record.name}", "\n".join(filter(None, body)), footer
    )


def _head(letter: str, report: Report) -> str:
    """Name, command, date and machine of a run, its verdict and its figures."""
    command = escape(" ".join(report.summary.command))
    return (
        f"<section><h2>{letter}: {escape(report.record.name)}</h2>"
        f'<p class="note">{escape(occasion(report))}</p><code class="command">{command}</code>'
        f'<p class="subtitle">{escape(report.verdict.headline)}</p>{tiles(report)}</section>'
    )


def _beside(title: str, halves: list[str], note: str = "") -> str:
    if not any(halves):
        return ""
    cells = [
        f"<div><h3>{letter}</h3>{half or MISSING}</div>"
        for letter, half in zip("AB", halves, strict=True)
    ]
    return section(title, f'<div class="two">{"".join(cells)}</div>', note)


def _phases(a: Report, b: Report) -> list[str]:
    """The step over each run, stacked by phase, as high as the higher one."""
    both = [phases_over_steps(report.view) for report in (a, b)]
    tops = [chart_top(drawn[1])[0] for drawn in both if drawn is not None]
    halves = []
    for drawn in both:
        if drawn is None:
            halves.append("")
        else:
            steps, layers = drawn
            halves.append(legend(list(layers)) + stacked(steps, layers, max(tops), width=HALF))
    return halves


def _trends(a: Report, b: Report) -> list[str]:
    """Step time, memory, loss and norms that both runs have."""
    of_a = {trend.name: trend for trend in trends(a.view)}
    of_b = {trend.name: trend for trend in trends(b.view)}
    sections = []
    for name in of_a:
        if name in of_b:
            pair = (of_a[name], of_b[name])
            if name == "learning rate" and all(of_run.is_constant for of_run in pair):
                continue  # what was set differently is listed
            values = np.concatenate([of_run.values[np.isfinite(of_run.values)] for of_run in pair])
            limits = (float(values.min()), float(values.max()))
            halves = [_line(of_run, limits) for of_run in pair]
            sections.append(_beside(capitalised(name), halves, _SAME_SCALE))
    return sections


def _line(trend: TrendLine, limits: tuple[float, float]) -> str:
    return line(
        trend.steps,
        trend.values,
        unit=trend.unit,
        colour="backward",
        label=trend.name,
        marks=trend.marks,
        limits=limits,
    )


def _findings(report: Report) -> str:
    rows = [
        (finding.severity, f"{finding.id} {finding.title}", recoverable(finding) or MISSING)
        for finding in report.findings
    ]
    if not rows:
        return '<p class="none">nothing found</p>'
    return table(("severity", "finding", "wins back"), rows, left=(0, 1, 2))
