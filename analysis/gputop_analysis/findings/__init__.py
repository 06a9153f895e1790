"""What is wrong with a run, what it costs and how to mend it. ``CATALOGUE`` lists all checks."""

from __future__ import annotations

from dataclasses import replace

from gputop_analysis.findings import checks  # noqa: F401  (registers them)
from gputop_analysis.findings.levers import settled
from gputop_analysis.findings.precedence import ordered, take_in
from gputop_analysis.findings.registry import CATALOGUE, as_list
from gputop_analysis.live_ranks import live_ranks
from gputop_analysis.model import Finding
from gputop_analysis.prices import run_usd_per_hour
from gputop_analysis.summary import steps_done
from gputop_analysis.view import RunView, once_per_view
from gputop_probes.record.reader import RunRecord

__all__ = ["CATALOGUE", "evaluate", "judge", "judge_view", "sorted_out"]


def evaluate(
    record: RunRecord, window_steps: int | None = None, live: bool = False
) -> list[Finding]:
    """All findings of the last ``window_steps`` steps, or of the whole run.

    Findings that another one explains are taken in by it (see ``absorbed``). The worst comes first:
    by severity, then by recoverable time. ``live`` leaves out what only a finished run can tell.
    """
    return judge(record, window_steps, live)[0]


def judge(
    record: RunRecord, window_steps: int | None = None, live: bool = False
) -> tuple[list[Finding], list[Finding]]:
    """All findings as from ``evaluate``, and those that were taken in, with ``absorbed_by`` set."""
    return judge_view(
        RunView(record, window_steps, live=live, ranks=live_ranks(record) if live else None)
    )


def judge_view(view: RunView) -> tuple[list[Finding], list[Finding]]:
    """``judge`` of a view that was made already."""
    return sorted_out(
        view, [finding for spec in CATALOGUE.values() for finding in as_list(spec.check(view))]
    )


def sorted_out(view: RunView, findings: list[Finding]) -> tuple[list[Finding], list[Finding]]:
    """``judge`` of what the checks said: the hours each would win back, and what explains what."""
    with_hours = [_with_hours(finding, view) for finding in findings]
    settled_findings = settled(take_in(with_hours))
    keys = {finding.key for finding in settled_findings}
    taken = [
        _explained(finding, settled_findings) for finding in with_hours if finding.key not in keys
    ]
    return ordered(settled_findings), ordered(taken)


def _explained(finding: Finding, findings: list[Finding]) -> Finding:
    cause = next((cause.id for cause in findings if finding.id in cause.absorbed), None)
    return replace(finding, severity="info", absorbed_by=cause)


def _with_hours(finding: Finding, view: RunView) -> Finding:
    """Recoverable time over the steps that are left, where their number is known."""
    totals = [h["total_steps"] for h in view.hellos.values() if h.get("total_steps")]
    if finding.recoverable_ms_per_step is None or not totals:
        return finding
    steps_left = max(totals) - min(
        (steps_done(view.record, rank) for rank in view.ranks), default=0
    )
    if steps_left <= 0:
        return finding
    hours, rent = finding.recoverable_ms_per_step * steps_left / 3.6e6, _usd_per_hour(view)
    return replace(
        finding, recoverable_hours=hours, recoverable_usd=None if rent is None else hours * rent
    )


@once_per_view
def _usd_per_hour(view: RunView) -> float | None:
    return run_usd_per_hour(view.record)
