"""The report of one run, as data with stable names and units, and as text for people."""

from __future__ import annotations

import math
from typing import Any

from gputop_agent import wire
from gputop_analysis.findings import evaluate, judge
from gputop_analysis.model import Finding, GpuSummary, RankSummary, RunSummary
from gputop_analysis.report_text import render
from gputop_analysis.summary import summarise
from gputop_analysis.verdict import verdict
from gputop_probes.record.reader import RunRecord


def report_data(record: RunRecord) -> dict[str, Any]:
    """What ``gputop report --json`` prints. What was not measured is None; every number is finite.

    Findings that another one explains stand at the end, with severity ``info`` and ``absorbed_by``.
    """
    findings, explained = judge(record)
    summary = summarise(record)
    data = {
        "command": list(summary.command),
        "exit_code": summary.exit_code,
        "world_size": summary.world_size,
        "steps": summary.steps,
        "step_time_p50_ms": summary.step_time_p50_ms,
        "step_time_p95_ms": summary.step_time_p95_ms,
        "phases_mean_ms": dict.fromkeys(wire.PHASES, 0.0) | {p.name: p.mean_ms for p in summary.phases},
        "ranks": [_rank(one) for one in summary.ranks],
        "gpus": [_gpu(one) for one in summary.gpus],
        "findings": [_finding(one) for one in [*findings, *explained]],
        "context": summary.context,
    }
    return finite(data)


def report_text(record: RunRecord, width: int = 80, colour: bool = False) -> str:
    """What ``gputop report`` prints for people, at most ``width`` columns wide; plain ASCII without ``colour``."""
    findings = evaluate(record)
    summary: RunSummary = summarise(record)
    return render(record, summary, findings, verdict(summary, findings), width, colour)


def finite(value: Any) -> Any:
    """The same JSON value with NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def _rank(one: RankSummary) -> dict[str, Any]:
    names = (
        "rank",
        "host",
        "steps",
        "step_time_p50_ms",
        "phases_mean_ms",
        "wait_mean_ms",
        "peak_allocated_gib",
        "peak_reserved_gib",
        "peak_rss_gib",
        "dropped_records",
    )
    return {name: getattr(one, name) for name in names}


def _gpu(one: GpuSummary) -> dict[str, Any]:
    names = ("index", "name", "memory_total_gib", "peak_used_gib", "util_mean_pct", "power_mean_w")
    return {name: getattr(one, name) for name in names}


def _finding(one: Finding) -> dict[str, Any]:
    names = (
        "id",
        "name",
        "severity",
        "rank",
        "host",
        "site",
        "title",
        "evidence",
        "fix",
        "confidence",
        "recoverable_ms_per_step",
        "interval_ms_per_step",
        "recoverable_hours",
        "absorbed_by",
    )
    return {name: getattr(one, name) for name in names}
