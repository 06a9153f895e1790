"""What is wrong with a run, what it costs and how to mend it. ``CATALOGUE`` lists all checks."""

from __future__ import annotations

from dataclasses import replace

from gputop_analysis.findings import crash, host, input, memory, numerics, ranks  # noqa: F401  (they register)
from gputop_analysis.findings.precedence import ordered, take_in
from gputop_analysis.findings.registry import CATALOGUE, Result
from gputop_analysis.model import Finding
from gputop_analysis.summary import steps_done
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

__all__ = ["CATALOGUE", "evaluate"]


def evaluate(record: RunRecord, window_steps: int | None = None, live: bool = False) -> list[Finding]:
    """All findings of the last ``window_steps`` steps, or of the whole run.

    Findings that another one explains are taken in by it (see ``absorbed``). The worst comes first: by severity, then
    by recoverable time. ``live`` leaves out what only a finished run can tell.
    """
    view = RunView(record, window_steps, live=live)
    found = [one for spec in CATALOGUE.values() for one in _as_list(spec.check(view))]
    return ordered([_with_hours(one, view) for one in take_in(found)])


def _as_list(result: Result) -> list[Finding]:
    if result is None:
        return []
    return [result] if isinstance(result, Finding) else list(result)


def _with_hours(one: Finding, view: RunView) -> Finding:
    """Recoverable time over the steps that are left, where their number is known."""
    totals = [h["total_steps"] for h in view.hellos.values() if h.get("total_steps")]
    if one.recoverable_ms_per_step is None or not totals:
        return one
    left = max(totals) - min((steps_done(view.record, rank) for rank in view.ranks), default=0)
    return replace(one, recoverable_hours=one.recoverable_ms_per_step * left / 3.6e6) if left > 0 else one
