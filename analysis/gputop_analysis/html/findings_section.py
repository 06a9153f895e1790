"""The findings as cards, each with its proof folded below it."""

from __future__ import annotations

from html import escape

from gputop_analysis.findings.registry import CATALOGUE
from gputop_analysis.html.elements import details, pairs, prose, section, table
from gputop_analysis.model import Finding, Proof
from gputop_analysis.report.build import Report
from gputop_analysis.report.words import confidence, figure, measured, recoverable
from gputop_analysis.text import ms


def findings(report: Report) -> str:
    """All findings, worst first; what another one explains stands inside it."""
    if not report.findings:
        return section(
            "Findings", f'<p class="none">None: {len(CATALOGUE)} checks looked at this run.</p>'
        )
    cards = "".join(_card(report, finding) for finding in report.findings)
    return section(
        "Findings", cards, f"{len(CATALOGUE)} checks looked at this run; the worst stands first."
    )


def _card(report: Report, finding: Finding) -> str:
    worth = finding.recoverable_ms_per_step
    won = ""
    if worth:
        won = f'<span class="won">wins back {escape(ms(worth))} ms a step</span>'
    return (
        f'<div class="finding" id="{escape(finding.id)}" '
        f'style="--c:var(--{finding.severity})"><div class="head">'
        f'<span class="id">{escape(finding.severity)} &middot; '
        f"{escape(finding.id)} {escape(finding.name)}</span>{won}</div>"
        f'<p class="title">{escape(finding.title)}</p>'
        f'<p class="evidence">{prose(finding.evidence)}</p>'
        f'<div class="fix">{prose(finding.fix)}'
        f"</div>{details('Proof and small print', _proof(report, finding))}</div>"
    )


def _proof(report: Report, finding: Finding) -> str:
    judged = ""
    if finding.proof:
        judged = _judged(finding.proof)
    trigger = silent = traps = ""
    if spec := CATALOGUE.get(finding.id):
        trigger, silent, traps = spec.trigger, spec.silent, spec.traps
    taken = []
    for o in report.explained:
        if o.absorbed_by == finding.id:
            taken.append(f"{o.id} {o.name}: {o.title}")
    small = [
        ("confidence", confidence(finding.confidence)),
        ("wins back", recoverable(finding)),
        ("raised when", trigger),
        ("silent when", silent),
        ("traps", traps),
        ("covers", "; ".join(taken)),
    ]
    return judged + pairs(small)


def _judged(proof: Proof) -> str:
    rows = []
    for item in proof.inputs:
        value = item.value
        if not isinstance(value, str):
            value = figure(value)
        rows.append((item.name, value, item.unit, item.source))
    judged = [
        ("statistic", proof.statistic),
        ("value", measured(proof.value, proof.unit)),
        ("threshold", measured(proof.threshold, proof.unit)),
        ("formula", proof.formula),
    ]
    html = pairs(judged)
    if rows:
        html += table(("input", "value", "unit", "source"), rows, left=(0, 2, 3))
    return html
