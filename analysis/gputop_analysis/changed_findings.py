"""Findings of two runs: what came, what went, what stayed."""

from __future__ import annotations

from dataclasses import replace

from gputop_analysis.diff.model import Diff, FindingsDiff
from gputop_analysis.findings import evaluate
from gputop_analysis.model import Finding
from gputop_probes.record.reader import RunRecord


def with_findings(diff: Diff, a: RunRecord, b: RunRecord) -> Diff:
    """The comparison with the findings of both runs; apart, since judging a run takes longer than
    comparing its steps.
    """
    of_a, of_b = _serious(a), _serious(b)
    ids_a, ids_b = {finding.id for finding in of_a}, {finding.id for finding in of_b}
    findings = FindingsDiff(
        came=tuple(finding for finding in of_b if finding.id not in ids_a),
        went=tuple(finding for finding in of_a if finding.id not in ids_b),
        stayed=tuple(finding for finding in of_b if finding.id in ids_a),
    )
    return replace(diff, findings=findings)


def _serious(record: RunRecord) -> list[Finding]:
    return [finding for finding in evaluate(record) if finding.severity != "info"]
