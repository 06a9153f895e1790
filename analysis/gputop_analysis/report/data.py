"""The report as data: stable names with units, null for what was not measured."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from gputop_agent import wire
from gputop_analysis.energy import energy
from gputop_analysis.model import Bottleneck, Finding, GpuSummary, RankSummary
from gputop_analysis.report.build import Report
from gputop_probes.record.reader import RunRecord

_RANK = (
    "rank",
    "host",
    "steps",
    "step_time_p50_ms",
    "step_time_p95_ms",
    "step_time_mean_ms",
    "phases_mean_ms",
    "wait_mean_ms",
    "peak_allocated_gib",
    "peak_reserved_gib",
    "peak_rss_gib",
    "dropped_records",
)
_GPU = ("index", "name", "memory_total_gib", "peak_used_gib", "util_mean_pct", "power_mean_w")
_FINDING = (
    "id",
    "name",
    "severity",
    "rank",
    "gpu",
    "host",
    "site",
    "title",
    "evidence",
    "fix",
    "confidence",
    "recoverable_ms_per_step",
    "interval_ms_per_step",
    "recoverable_hours",
    "recoverable_usd",
    "absorbed",
    "absorbed_by",
)


def report_data(record: RunRecord) -> dict[str, Any]:
    """What ``gputop report --json`` prints of a record: ``as_data`` of its report."""
    return as_data(Report(record))


def as_data(report: Report) -> dict[str, Any]:
    """The report as one JSON object. What was not measured is None; every number is finite.

    Findings that another one explains stand at the end, with severity ``info`` and ``absorbed_by``.
    """
    s = report.summary
    data = {
        "command": list(s.command),
        "state": s.state,
        "exit_code": s.exit_code,
        "duration_s": s.duration_s,
        "world_size": s.world_size,
        "steps": s.steps,
        "total_steps": s.total_steps,
        "step_time_p50_ms": s.step_time_p50_ms,
        "step_time_p95_ms": s.step_time_p95_ms,
        "steps_per_s": s.steps_per_s,
        "samples_per_s": s.samples_per_s or None,
        "tokens_per_s": s.tokens_per_s or None,
        "phases_mean_ms": dict.fromkeys(wire.PHASES, 0.0) | {p.name: p.mean_ms for p in s.phases},
        "phases_measured_steps": s.sampled.measured if s.sampled else None,
        "phases_half_width": s.sampled.half_width if s.sampled else 0.0,
        "own_cost": s.own_cost._asdict() if s.own_cost else None,
        "wait_in_backward_ms": s.wait_in_backward_ms,
        "verdict": _verdict(report),
        "budget": _budget(report),
        "goodput": _goodput(report),
        "numerics": _numerics(report),
        "balance": _balance(report),
        "energy": _energy(report),
        "ranks": [_rank(one) | _beside_others(report, place) for place, one in enumerate(s.ranks)],
        "gpus": [_gpu(one) for one in s.gpus],
        "own_work": report.own_work._asdict() if report.own_work else None,
        "output_lost_bytes": _output_lost(report),
        "damaged_rows": report.record.damage.rows,
        "damaged_events": report.record.damage.events,
        "damage": report.record.damage.notes,
        "findings": [finding_data(one) for one in [*report.findings, *report.explained]],
        "context": s.context,
    } | {extra.name: extra.data for extra in report.extras}
    return finite(data)


def finite(value: Any) -> Any:
    """The same JSON value with NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def finding_data(one: Finding) -> dict[str, Any]:
    """One finding with its proof."""
    return {name: getattr(one, name) for name in _FINDING} | {"proof": asdict(one.proof) if one.proof else None}


def _verdict(report: Report) -> dict[str, Any]:
    limit: Bottleneck = report.bottleneck
    one = limit.finding
    return {
        "health": report.verdict.health,
        "headline": report.verdict.headline,
        "bottleneck": limit.kind,
        "confidence": limit.confidence,
        "why": limit.why,
        "do_first": limit.do_first,
        "finding": one.id if one else None,
        "rank": one.rank if one else None,
        "site": one.site if one else None,
        "recoverable_ms_per_step": one.recoverable_ms_per_step if one else None,
        "interval_ms_per_step": one.interval_ms_per_step if one else None,
        "recoverable_hours": one.recoverable_hours if one else None,
        "recoverable_usd": one.recoverable_usd if one else None,
    }


def _budget(report: Report) -> dict[str, Any]:
    found = report.budget
    return {
        "ms_per_step": {name: found.ms_per_step(name) for name in found.lines_ns},
        "share": {name: found.share(name) for name in found.lines_ns},
        "mfu": found.mfu,
        "hfu": found.hfu,
        "useful_compute_is": found.compute_anchor,
    }


def _goodput(report: Report) -> dict[str, Any] | None:
    found = report.goodput
    if found is None:
        return None
    seconds = {name: value / 1e9 for name, value in found.parts_ns.items()}
    return {"share": found.goodput, "session_s": found.session_ns / 1e9, "parts_s": seconds, "restarts": found.restarts}


def _output_lost(report: Report) -> dict[str, int] | None:
    """Bytes of the command's output by what became of them; null where no host says how it fared."""
    states = [host.state for host in report.record.hosts.values()]
    names = ("missing", "given_up", "not_passed_on")
    return {name: sum(one.output_losses.get(name, 0) for one in states) for name in names} if states else None


def _energy(report: Report) -> dict[str, Any] | None:
    found = energy(report.view)
    return asdict(found) if found else None


def _numerics(report: Report) -> dict[str, Any] | None:
    """What stands out; the series themselves are in ``export --format csv``."""
    found = report.numerics
    if found is None:
        return None
    return {
        "rank": found.rank,
        "loss_trend": asdict(found.trend) if found.trend else None,
        "spikes": [asdict(one) for one in found.spikes],
        "instabilities": [one.told() for one in found.instabilities],
    }


def _balance(report: Report) -> dict[str, Any] | None:
    """How evenly the ranks work; None for fewer than two."""
    t = report.rank_table
    names = ("pattern", "culprit", "load_imbalance", "exposed_comm_ms")
    said = {"cause": t.cause or None, "source": t.source or None} if t else {}
    return {name: getattr(t, name) for name in names} | said if t else None


def _beside_others(report: Report, place: int) -> dict[str, Any]:
    """What a rank does more than the others; null for a single rank."""
    t = report.rank_table
    return {
        "slowest_share": float(t.slowest_share[place]) if t else None,
        "comm_share": float(t.comm_share[place]) if t else None,
        "excess_phase": t.excess_phase[place] or None if t else None,
        "excess_ms": float(t.excess_ms[place]) if t else None,
    }


def _rank(one: RankSummary) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _RANK}


def _gpu(one: GpuSummary) -> dict[str, Any]:
    return {name: getattr(one, name) for name in _GPU}
