"""The comparison as JSON: stable names, units in them, null for what is not known."""

from __future__ import annotations

import math
from typing import Any

from gputop_analysis.diff.model import JUDGEMENTS, Diff, LossDiff, SpeedDiff


def diff_data(diff: Diff) -> dict[str, Any]:
    """What ``gputop diff --json`` prints."""
    return {
        "a": {"run": diff.a_name, "steps": diff.a_steps},
        "b": {"run": diff.b_name, "steps": diff.b_steps},
        "threshold_pct": 100 * diff.threshold,
        "judgement": diff.judgement,
        "meaning": JUDGEMENTS[diff.judgement],
        "regression": diff.is_regression,
        "said_first": [
            {"what": one.what, "a": one.a, "b": one.b, "text": one.text, "comparable": one.comparable}
            for one in diff.caveats
        ],
        "speed": _speed(diff.speed) if diff.speed else None,
        "memory": [{"name": one.name, "a_gib": _known(one.a_gib), "b_gib": _known(one.b_gib)} for one in diff.memory],
        "loss": _loss(diff.loss) if diff.loss else None,
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
        "phases": [_part(one, name=one.name) for one in speed.phases],
        "ranks": [_part(one, rank=one.rank, phase=one.phase) for one in speed.ranks],
    }


def _part(one: Any, **head: Any) -> dict[str, Any]:
    interval = [one.difference_ms.low, one.difference_ms.high]
    return {
        **head,
        "a_ms_per_step": one.a_ms,
        "b_ms_per_step": one.b_ms,
        "difference_ms_per_step": one.difference_ms.value,
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


def _known(value: float) -> float | None:
    return value if math.isfinite(value) and value >= 0 else None
