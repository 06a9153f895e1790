"""Which finding explains which, and which one the user reads first."""

from __future__ import annotations

from dataclasses import replace

from gputop_analysis.findings.registry import CATALOGUE, CAUSES, STANDING_STILL, STRAGGLERS
from gputop_analysis.model import SEVERITIES, Finding


def take_in(findings: list[Finding]) -> list[Finding]:
    """Drop each finding that another one explains.

    The explaining one keeps its own estimate of the recoverable time, or takes over the effect's
    where it has none. Causes are looked at in the order hang > crash > NaN > throttle > straggler >
    input > comm > host > compute, so that what is taken in goes to the deepest cause.
    """
    remaining = sorted(findings, key=_precedence)
    index = 0
    while index < len(remaining):
        cause = remaining[index]
        taken = [
            finding for finding in remaining if finding is not cause and explains(cause, finding)
        ]
        taken_ids = {id(finding) for finding in taken}  # equal findings are told apart
        before = [finding for finding in remaining[:index] if id(finding) not in taken_ids]
        after = [finding for finding in remaining[index + 1 :] if id(finding) not in taken_ids]
        remaining = [*before, _with(cause, taken), *after]
        index = len(before) + 1
    return remaining


def explains(cause: Finding, effect: Finding) -> bool:
    """Whether ``cause`` says why ``effect`` is seen: its spec names it, and it reaches the rank of
    ``effect``.

    What one rank does explains what is seen on that rank, but not what all ranks have, and a
    setting that all ranks have not why one of them is late; a crash explains everything. A hang
    that is over, which is not critical, explains no end of a run, and an info nothing that is more
    than one.
    """
    spec = CATALOGUE[cause.id]
    if cause.severity == "info" and effect.severity != "info":
        return False
    is_over = spec.cause == "hang" and cause.severity != "critical"
    if is_over and CATALOGUE[effect.id].cause == "crash":
        return False
    is_setting = spec.family == "host" and effect.id in STRAGGLERS and effect.rank is not None
    of_all = cause.rank is None and not is_setting
    everywhere = of_all or spec.cause in ("hang", "crash", "nan")
    explained = effect.id in spec.explains or cause.id in CATALOGUE[effect.id].explained_by
    return explained and (everywhere or cause.rank == effect.rank)


def ordered(findings: list[Finding]) -> list[Finding]:
    """By severity, then by recoverable time per step, then by cause; who holds up a run that makes
    no step comes before what its steps lost.
    """
    return sorted(
        findings,
        key=lambda finding: (
            SEVERITIES.index(finding.severity),
            finding.id != STANDING_STILL,
            -(finding.recoverable_ms_per_step or 0.0),
            _precedence(finding),
        ),
    )


def _precedence(finding: Finding) -> tuple[int, str]:
    return CAUSES.index(CATALOGUE[finding.id].cause), finding.id


def _with(cause: Finding, taken: list[Finding]) -> Finding:
    if not taken:
        return cause
    ids = tuple(sorted({i for finding in taken for i in (finding.id, *finding.absorbed)}))
    has_promise = cause.recoverable_ms_per_step is not None
    if has_promise:
        longest = cause
    else:
        longest = max(taken, key=lambda finding: finding.recoverable_ms_per_step or 0.0)
    severity = min((cause, *taken), key=lambda finding: SEVERITIES.index(finding.severity)).severity
    return replace(
        cause,
        absorbed=ids,
        severity=severity,
        recoverable_ms_per_step=longest.recoverable_ms_per_step,
        interval_ms_per_step=longest.interval_ms_per_step,
    )
