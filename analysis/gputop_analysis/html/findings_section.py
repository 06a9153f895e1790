"""The findings as cards, each with its proof folded below it."""

from __future__ import annotations

from html import escape

from gputop_analysis.findings.registry import CATALOGUE
from gputop_analysis.html.elements import details, pairs, section, table
from gputop_analysis.model import Finding, Proof
from gputop_analysis.report.build import Report
from gputop_analysis.report.words import confidence, figure, measured, recoverable
from gputop_analysis.text import ms


def findings(report: Report) -> str:
    """All findings, worst first; what another one explains stands inside it."""
    if not report.findings:
        return section("Findings", f'<p class="none">None: {len(CATALOGUE)} checks looked at this run.</p>')
    cards = "".join(_card(report, one) for one in report.findings)
    return section("Findings", cards, f"{len(CATALOGUE)} checks looked at this run; the worst stands first.")


def _card(report: Report, one: Finding) -> str:
    worth = one.recoverable_ms_per_step
    won = f'<span class="won">wins back {escape(ms(worth))} ms a step</span>' if worth else ""
    return (
        f'<div class="finding" id="{escape(one.id)}" style="--c:var(--{one.severity})"><div class="head">'
        f'<span class="id">{escape(one.severity)} &middot; {escape(one.id)} {escape(one.name)}</span>{won}</div>'
        f'<p class="title">{escape(one.title)}</p><p class="evidence">{escape(one.evidence)}</p>'
        f'<div class="fix">{escape(one.fix)}</div>{details("Proof and small print", _proof(report, one))}</div>'
    )


def _proof(report: Report, one: Finding) -> str:
    spec = CATALOGUE.get(one.id)
    taken = [f"{o.id} {o.name}: {o.title}" for o in report.explained if o.absorbed_by == one.id]
    small = [
        ("confidence", confidence(one.confidence)),
        ("wins back", recoverable(one)),
        ("raised when", spec.trigger if spec else ""),
        ("silent when", spec.silent if spec else ""),
        ("traps", spec.traps if spec else ""),
        ("covers", "; ".join(taken)),
    ]
    return (_judged(one.proof) if one.proof else "") + pairs(small)


def _judged(proof: Proof) -> str:
    rows = [(i.name, i.value if isinstance(i.value, str) else figure(i.value), i.unit, i.source) for i in proof.inputs]
    judged = [
        ("statistic", proof.statistic),
        ("value", measured(proof.value, proof.unit)),
        ("threshold", measured(proof.threshold, proof.unit)),
        ("formula", proof.formula),
    ]
    return pairs(judged) + (table(("input", "value", "unit", "source"), rows, left=(0, 2, 3)) if rows else "")
