"""Findings that pull one lever in opposite directions become one finding, with the net advice."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from gputop_analysis.findings.advice import Option, as_text
from gputop_analysis.model import SEVERITIES, Finding


def settled(found: list[Finding]) -> list[Finding]:
    """The findings without contradictions.

    Of two that move a lever up and down in the same place, the one that wins more a step is kept;
    it takes in the other, whose remaining options follow its own. An option that promises nothing
    yields to one that does.
    """
    remaining = list(found)
    for finding, other in combinations(found, 2):
        if finding not in remaining or other not in remaining or not _same_place(finding, other):
            continue
        if not _opposed(finding, other):
            continue
        stronger, yields = sorted((finding, other), key=_gain, reverse=True)
        remaining[remaining.index(stronger)] = _merged(stronger, yields)
        remaining.remove(yields)
        return settled(remaining)
    return remaining


def _same_place(one: Finding, other: Finding) -> bool:
    ranks = one.rank is None or other.rank is None or one.rank == other.rank
    hosts = one.host is None or other.host is None or one.host == other.host
    return ranks and hosts


def _pulls(finding: Finding) -> dict[str, int]:
    return {option.lever.name: option.lever.direction for option in finding.options if option.lever}


def _opposed(one: Finding, other: Finding) -> set[str]:
    """Names of the levers that both move, in opposite directions."""
    pulls, other_pulls = _pulls(one), _pulls(other)
    return {name for name in pulls if other_pulls.get(name, pulls[name]) != pulls[name]}


def _gain(finding: Finding) -> tuple[int, float]:
    """What decides: a danger (out of memory, a crash) before time, then the time."""
    danger = finding.recoverable_ms_per_step is None and finding.severity in ("critical", "high")
    return int(danger), finding.recoverable_ms_per_step or 0.0


def _merged(kept: Finding, yields: Finding) -> Finding:
    against = _opposed(kept, yields)
    more = [
        option
        for option in yields.options
        if _name(option) not in against and option not in kept.options
    ]
    options = (*kept.options, *more)
    severity = min(kept.severity, yields.severity, key=SEVERITIES.index)
    return replace(
        kept,
        severity=severity,
        options=options,
        fix=as_text(options),
        evidence=f"{kept.evidence}; {yields.id} would ask for the opposite of "
        f"{' and '.join(sorted(against))}: {yields.title}",
        absorbed=tuple(sorted({*kept.absorbed, yields.id, *yields.absorbed})),
    )


def _name(option: Option) -> str:
    return option.lever.name if option.lever else ""
