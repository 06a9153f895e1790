"""The comparison as JSON: stable names, units in them, null for what is not known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gputop_analysis.diff.model import JUDGEMENTS, Diff, FindingsDiff, LossDiff, SpeedDiff
from gputop_analysis.model import Finding


def diff_data(diff: Diff) -> dict[str, Any]:
    """Build the object that ``gputop diff --json`` prints."""
    return {
        "a": {"run": diff.a_name, "steps": diff.a_steps},
        "b": {"run": diff.b_name, "steps": diff.b_steps},
        "threshold_pct": 100 * diff.threshold,
        "judgement": diff.judgement,
        "meaning": JUDGEMENTS[diff.judgement],
        "regression": diff.is_regression,
        "said_first": [
            {
                "what": row.what,
                "a": row.a,
                "b": row.b,
                "text": row.text,
                "comparable": row.comparable,
            }
            for row in diff.caveats
        ],
        "speed": _speed(diff.speed) if diff.speed else None,
        "memory": [
            {"name": row.name, "a_gib": _known(row.a_gib), "b_gib": _known(row.b_gib)}
            for row in diff.memory
        ],
        "loss": _loss(diff.loss) if diff.loss else None,
        "findings": _findings(diff.findings) if diff.findings else None,
        "changes": [{"name": c.name, "group": c.group, "a": c.a, "b": c.b} for c in diff.changes],
    }


def _speed(speed: SpeedDiff) -> dict[str, Any]:
    return {
        "unit": speed.unit,
        "a_ms": speed.a_ms,
        "b_ms": speed.b_ms,
        "slower_pct": 100 * speed.slower.value,
        "interval_pct": [100 * speed.slower.low, 100 * speed.slower.high],
        "steps_compared": list(speed.steps),
        "foreign_wait_ms_per_step": speed.foreign_ms[1] - speed.foreign_ms[0],
        "foreign_wait_each_ms_per_step": list(speed.foreign_ms),
        "phase": speed.phase,
        "rank": speed.culprit,
        "phases": [_part(row, name=row.name) for row in speed.phases],
        "ranks": [_part(row, rank=row.rank, phase=row.phase) for row in speed.ranks],
    }


def _part(row: Any, **head: Any) -> dict[str, Any]:
    interval = [row.difference_ms.low, row.difference_ms.high]
    return {
        **head,
        "a_ms_per_step": row.a_ms,
        "b_ms_per_step": row.b_ms,
        "difference_ms_per_step": row.difference_ms.value,
        "interval_ms_per_step": interval,
    }


def _loss(loss: LossDiff) -> dict[str, Any]:
    return {
        "rank": loss.rank,
        "steps_compared": loss.compared,
        "first_different_step": loss.first_step,
        "first_values": list(loss.first_values) if loss.first_values else None,
        "first_visibly_different_step": loss.first_visible_step,
        "last_step": loss.last_step,
        "last_values": list(loss.last_values),
        "same_seed": loss.same_seed,
        "equal_until_step": loss.equal_until,
    }


def _findings(findings: FindingsDiff) -> dict[str, Any]:
    return {
        "came": _listed(findings.came),
        "went": _listed(findings.went),
        "stayed": _listed(findings.stayed),
    }


def _listed(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """What is told of each, without its proof."""
    return [
        {"id": f.id, "severity": f.severity, "rank": f.rank, "title": f.title} for f in findings
    ]


def _known(value: float) -> float | None:
    if math.isfinite(value) and value >= 0:
        return value
    return None
