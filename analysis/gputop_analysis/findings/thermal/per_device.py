"""Checks that look at one device after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps

from gputop_analysis.findings.registry import Spec
from gputop_analysis.gpu_samples import SampledDevice
from gputop_analysis.model import SEVERITIES, Finding, Proof, Severity
from gputop_analysis.view import RunView


def per_device(
    check: Callable[[RunView, Spec], Iterator[Finding]],
) -> Callable[[RunView, Spec], list[Finding]]:
    """Make a list of what a check yields, with one finding a rank at most.

    Where it is not known which rank trains on which device, the worst stands for all and names the
    others.
    """

    @wraps(check)
    def listed(view: RunView, spec: Spec) -> list[Finding]:
        by_rank: dict[int | None, list[Finding]] = {}
        for finding in check(view, spec):
            by_rank.setdefault(finding.rank, []).append(finding)
        return [_worst(of_rank) for of_rank in by_rank.values()]

    return listed


def device_finding(
    spec: Spec,
    device: SampledDevice,
    severity: Severity,
    *,
    title: str,
    evidence: str,
    fix: str,
    proof: Proof,
    lost_ms: float | None = None,
    confidence: float = 0.85,
) -> Finding:
    """A finding about one device, on the rank that trains on it where that is known."""
    return spec.make(
        severity=severity,
        title=title,
        evidence=evidence,
        fix=fix,
        rank=device.rank,
        gpu=device.index,
        host=device.host or None,
        confidence=confidence,
        recoverable_ms_per_step=lost_ms,
        proof=proof,
    )


def _worst(findings: list[Finding]) -> Finding:
    worst = min(
        findings,
        key=lambda finding: (
            SEVERITIES.index(finding.severity),
            -(finding.recoverable_ms_per_step or 0.0),
        ),
    )
    other_gpus = [_gpu_words(finding) for finding in findings if finding is not worst]
    if other_gpus:
        return replace(
            worst, evidence=f"{worst.evidence}; the same on {', '.join(other_gpus[:16])}"
        )
    return worst


def _gpu_words(finding: Finding) -> str:
    """``GPU 3 of node-2``."""
    return f"GPU {finding.gpu}" + (f" of {finding.host}" if finding.host else "")
