"""Where a number or a finding comes from: inputs, statistic, threshold, formula."""

from __future__ import annotations

import difflib

from gputop_analysis.catalogue import entry
from gputop_analysis.findings import CATALOGUE
from gputop_analysis.lint import in_source
from gputop_analysis.model import Finding, Proof
from gputop_analysis.report.build import Report
from gputop_analysis.report.figures import Figure, figures
from gputop_analysis.report.words import confidence, figure, measured, recoverable
from gputop_analysis.text import wrapped

RANKS_LISTED = 2
"""Ranks whose figures the overview lists; the others have the same."""


class NotInReport(LookupError):
    """No finding and no figure of that name; the message says which are near."""


def explain(report: Report, name: str, width: int = 80) -> str:
    """A finding by its id, or the figures of that name, for people.

    Raises:
        NotInReport: there is no such thing.
    """
    if name.upper() in CATALOGUE:
        raised = raised_as(report, name.upper())
        parts = [finding_text(report, finding, width) for finding in raised] or [
            _not_raised(name.upper(), width)
        ]
        return "\n\n".join(parts)
    return "\n\n".join(figure_text(finding, width) for finding in figures_named(report, name))


def raised_as(report: Report, id: str) -> list[Finding]:
    """The findings of that id, those that another one takes in as well."""
    return [finding for finding in (*report.findings, *report.explained) if finding.id == id]


def figures_named(report: Report, name: str) -> list[Figure]:
    """The figure of that whole name, or all whose last part it is (``wait_mean_ms``: of every
    rank).

    Raises:
        NotInReport: there is none.
    """
    all_figures = figures(report)
    named = [f for f in all_figures if f.name == name] or [
        f for f in all_figures if name in _endings(f.name)
    ]
    if named:
        return named
    names = [
        *CATALOGUE,
        *(f.name for f in all_figures),
        *{f.name.rpartition(".")[2] for f in all_figures},
    ]
    near = difflib.get_close_matches(name, names, n=1) or difflib.get_close_matches(
        name.upper(), CATALOGUE, n=1
    )
    if near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = "--explain without a name lists what there is"
    raise NotInReport(f"no finding and no figure {name!r} in this report: {hint}")


def overview(report: Report, width: int) -> str:
    """All that can be asked for: the findings of this run and every figure with its value."""
    lines = ["findings"]
    lines += [
        f"  {finding.id}  {finding.title}"[:width]
        for finding in (*report.findings, *report.explained)
    ] or ["  none"]
    lines.append("figures")
    ranks = [f"ranks.{rank}." for rank in report.view.ranks[RANKS_LISTED:]]
    if ranks:
        lines.append(
            f"  ({len(ranks)} more ranks have the same names as rank {report.view.ranks[0]})"
        )
    for finding in figures(report):
        if finding.name.startswith(tuple(ranks)):
            continue
        lines.append(
            f"  {finding.name:<38} {_number(finding.value):>12} {finding.unit}"[:width].rstrip()
        )
    return "\n".join(lines)


def figure_text(figure: Figure, width: int) -> str:
    """One figure for people."""
    lines = [f"{figure.name} = {_number(figure.value)} {figure.unit}".rstrip()]
    lines += wrapped("means", figure.definition, width, indent=2)
    lines += wrapped("source", figure.source, width, indent=2)
    lines += wrapped("read", figure.read, width, indent=2)
    return "\n".join(lines)


def finding_text(report: Report, finding: Finding, width: int) -> str:
    """One finding of the run with all that it rests on."""
    where = f", rank {finding.rank}" if finding.rank is not None else ""
    if finding.absorbed_by:
        text = f"taken in by {finding.absorbed_by}"
    else:
        text = finding.severity
    lines = [
        f"{finding.id} {finding.name}: {text}{where}, confidence {confidence(finding.confidence)}"
    ]
    lines += wrapped("says", finding.title, width, indent=2)
    if finding.proof:
        lines += _proof(finding.proof, width)
    else:
        lines += wrapped("evidence", finding.evidence, width, indent=2)
    if won := recoverable(finding):
        lines += wrapped("wins back", won, width, indent=2)
    lines += wrapped("fix", finding.fix, width, indent=2)
    if text := in_source(finding.site, report.view.record.manifest.cwd):
        lines += wrapped("in source", text, width, indent=2)
    lines += _small_print(finding.id, width)
    for other in report.explained:
        if other.id in finding.absorbed and other.absorbed_by == finding.id:
            lines += wrapped("covers", f"{other.id} {other.name}: {other.title}", width, indent=2)
    return "\n".join(lines)


def _proof(proof: Proof, width: int) -> list[str]:
    lines = wrapped("statistic", proof.statistic, width, indent=2)
    lines += wrapped("value", measured(proof.value, proof.unit), width, indent=2)
    lines += wrapped("threshold", measured(proof.threshold, proof.unit), width, indent=2)
    lines += wrapped("formula", proof.formula, width, indent=2)
    room = max((len(i.name) for i in proof.inputs), default=0)
    for number, i in enumerate(proof.inputs):
        value = f"{i.value if isinstance(i.value, str) else figure(i.value)} {i.unit}".rstrip()
        text = f"{i.name:<{room}}  {value}" + (f"  from {i.source}" if i.source else "")
        lines += _kept(" " * 2 + f"{'' if number else 'inputs':<10}", text, width)
    return lines


def _kept(head: str, columns: str, width: int) -> list[str]:
    """One line with its columns kept, or wrapped where it does not fit."""
    text = head + columns
    if len(text) <= width:
        return [text]
    return wrapped(head.strip(), " ".join(columns.split()), width, indent=2)


def _small_print(id: str, width: int) -> list[str]:
    spec = CATALOGUE[id]
    labelled = {"raised": spec.trigger, "silent": spec.silent, "traps": spec.traps}
    return [
        line
        for label, text in labelled.items()
        if text
        for line in wrapped(label, text, width, indent=2)
    ]


def _not_raised(id: str, width: int) -> str:
    lines = [f"{id} {CATALOGUE[id].name}: not raised in this run"]
    lines += _small_print(id, width)
    reads = CATALOGUE[id].reads
    return "\n".join(lines + (wrapped("reads", reads, width, indent=2) if reads else []))


def explain_data(report: Report, name: str) -> dict[str, object]:
    """The same as data: ``{"findings", "catalogue"}`` of an id, ``{"figures"}`` of a figure's name.

    Raises:
        NotInReport: there is no such thing.
    """
    from dataclasses import asdict

    from gputop_analysis.report.data import finding_data, finite

    if name.upper() in CATALOGUE:
        root = report.view.record.manifest.cwd
        findings = raised_as(report, name.upper())
        raised = [
            {**finding_data(finding), "in_source": in_source(finding.site, root) or None}
            for finding in findings
        ]
        return finite({"findings": raised, "catalogue": entry(CATALOGUE[name.upper()])})
    return finite({"figures": [asdict(finding) for finding in figures_named(report, name)]})


def _endings(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))] + [".".join(parts[:2])]


def _number(value: float | None) -> str:
    return "not measured" if value is None else figure(value)
