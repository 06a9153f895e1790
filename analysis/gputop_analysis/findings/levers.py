"""Findings that pull one lever in opposite directions become one finding, with the net advice."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from gputop_analysis.findings.advice import Option, as_text
from gputop_analysis.model import SEVERITIES, Finding


def settled(findings: list[Finding]) -> list[Finding]:
    """The findings without contradictions.

    Of two that move a lever up and down in the same place, the one that wins more a step is kept;
    it takes in the other, whose remaining options follow its own. An option that promises nothing
    yields to one that does.
    """
    remaining = list(findings)
    for finding, other in combinations(findings, 2):
        if finding not in remaining or other not in remaining or not _same_place(finding, other):
            continue
        if not _opposed(finding, other):
            continue
        stronger, yields = sorted((finding, other), key=_gain, reverse=True)
        remaining[remaining.index(stronger)] = _merged(stronger, yields)
        remaining.remove(yields)
        return settled(remaining)
    return remaining


def _same_place(finding: Finding, other: Finding) -> bool:
    ranks = finding.rank is None or other.rank is None or finding.rank == other.rank
    hosts = finding.host is None or other.host is None or finding.host == other.host
    return ranks and hosts


def _pulls(finding: Finding) -> dict[str, int]:
    return {option.lever.name: option.lever.direction for option in finding.options if option.lever}


def _opposed(finding: Finding, other: Finding) -> set[str]:
    """Names of the levers that both move, in opposite directions."""
    pulls, other_pulls = _pulls(finding), _pulls(other)
    return {name for name in pulls if other_pulls.get(name, pulls[name]) != pulls[name]}


def _gain(finding: Finding) -> tuple[int, float]:
    """What decides: a danger (out of memory, a crash) before time, then the time."""
    danger = finding.recoverable_ms_per_step is None and finding.severity in ("critical", "high")
    return int(danger), finding.recoverable_ms_per_step or 0.0


def _merged(finding: Finding, yields: Finding) -> Finding:
    against = _opposed(finding, yields)
    more = [
        option
        for option in yields.options
        if _name(option) not in against and option not in finding.options
    ]
    options = (*finding.options, *more)
    severity = min(finding.severity, yields.severity, key=SEVERITIES.index)
    return replace(
        finding,
        severity=severity,
        options=options,
        fix=as_text(options),
        evidence=f"{finding.evidence}; {yields.id} would ask for the opposite of "
        f"{' and '.join(sorted(against))}: {yields.title}",
        absorbed=tuple(sorted({*finding.absorbed, yields.id, *yields.absorbed})),
    )


def _name(option: Option) -> str:
    return option.lever.name if option.lever else ""
