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
_GPU = (
    "index",
    "name",
    "memory_total_gib",
    "peak_used_gib",
    "util_mean_pct",
    "power_mean_w",
    "added",
)
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
    """Build what ``gputop report --json`` prints of a record: ``as_data`` of its report."""
    return as_data(Report(record))


def as_data(report: Report) -> dict[str, Any]:
    """The report as one JSON object. What was not measured is None; every number is finite.

    Findings that another one explains stand at the end, with severity ``info`` and ``absorbed_by``.
    """
    summary = report.summary
    data = {
        "command": list(summary.command),
        "state": summary.state,
        "exit_code": summary.exit_code,
        "duration_s": summary.duration_s,
        "world_size": summary.world_size,
        "steps": summary.steps,
        "total_steps": summary.total_steps,
        "step_time_p50_ms": summary.step_time_p50_ms,
        "step_time_p95_ms": summary.step_time_p95_ms,
        "steps_per_s": summary.steps_per_s,
        "samples_per_s": summary.samples_per_s or None,
        "tokens_per_s": summary.tokens_per_s or None,
        "phases_mean_ms": dict.fromkeys(wire.PHASES, 0.0)
        | {p.name: p.mean_ms for p in summary.phases},
        "phases_measured_steps": summary.sampled.measured if summary.sampled else None,
        "phases_half_width": summary.sampled.half_width if summary.sampled else 0.0,
        "own_cost": summary.own_cost._asdict() if summary.own_cost else None,
        "wait_in_backward_ms": summary.wait_in_backward_ms,
        "verdict": _verdict(report),
        "budget": _budget(report),
        "goodput": _goodput(report),
        "startup": _startup(report),
        "numerics": _numerics(report),
        "balance": _balance(report),
        "energy": _energy(report),
        "ranks": [
            _rank(item) | _beside_others(report, index) for index, item in enumerate(summary.ranks)
        ],
        "gpus": [_gpu(item) for item in summary.gpus],
        "own_work": report.own_work._asdict() if report.own_work else None,
        "output_lost_bytes": _output_lost(report),
        "damaged_rows": report.record.damage.rows,
        "damaged_events": report.record.damage.events,
        "damage": report.record.damage.notes,
        "findings": [finding_data(item) for item in [*report.findings, *report.explained]],
        "context": summary.context,
    } | {extra.name: extra.data for extra in report.extras}
    return finite(data)


def finite(value: Any) -> Any:
    """The same JSON value with NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float):
        if math.isfinite(value):
            return round(value, 6)
        return None
    return value


def finding_data(finding: Finding) -> dict[str, Any]:
    """One finding with its proof."""
    data = {name: getattr(finding, name) for name in _FINDING}
    data["proof"] = None
    if finding.proof:
        data["proof"] = asdict(finding.proof)
    return data


_FIRST_FINDING = {
    "finding": "id",
    "rank": "rank",
    "site": "site",
    "recoverable_ms_per_step": "recoverable_ms_per_step",
    "interval_ms_per_step": "interval_ms_per_step",
    "recoverable_hours": "recoverable_hours",
    "recoverable_usd": "recoverable_usd",
}
"""Attribute of the first finding by the key under which the verdict repeats it."""


def _verdict(report: Report) -> dict[str, Any]:
    limit: Bottleneck = report.bottleneck
    data = {
        "health": report.verdict.health,
        "headline": report.verdict.headline,
        "bottleneck": limit.kind,
        "confidence": limit.confidence,
        "why": limit.why,
        "do_first": limit.do_first,
    }
    for key, attribute in _FIRST_FINDING.items():
        data[key] = getattr(limit.finding, attribute, None)
    return data


def _budget(report: Report) -> dict[str, Any]:
    budget = report.budget
    return {
        "ms_per_step": {name: budget.ms_per_step(name) for name in budget.lines_ns},
        "share": {name: budget.share(name) for name in budget.lines_ns},
        "mfu": budget.mfu,
        "hfu": budget.hfu,
        "useful_compute_is": budget.compute_anchor,
    }


def _goodput(report: Report) -> dict[str, Any] | None:
    goodput = report.goodput
    if goodput is None:
        return None
    seconds = {name: value / 1e9 for name, value in goodput.parts_ns.items()}
    return {
        "share": goodput.goodput,
        "session_s": goodput.session_ns / 1e9,
        "parts_s": seconds,
        "restarts": goodput.restarts,
    }


def _startup(report: Report) -> dict[str, Any] | None:
    startup = report.startup
    if startup is None:
        return None
    return {
        "rank": startup.rank,
        "seconds": startup.seconds,
        "first_step_done": startup.done,
        "parts": [
            {
                "name": part.name,
                "seconds": part.ns / 1e9,
                "site": part.site or None,
                "before": part.before or None,
            }
            for part in startup.parts
        ],
    }


def _output_lost(report: Report) -> dict[str, int] | None:
    """Bytes of the command's output by what became of them; null where no host tells."""
    states = [host.state for host in report.record.hosts.values()]
    names = ("missing", "given_up", "not_passed_on")
    if not states:
        return None
    return {name: sum(state.output_losses.get(name, 0) for state in states) for name in names}


def _energy(report: Report) -> dict[str, Any] | None:
    use = energy(report.view)
    if use:
        return asdict(use)
    return None


def _numerics(report: Report) -> dict[str, Any] | None:
    """Points that stand out; the series themselves are in ``export --format csv``."""
    figures = report.numerics
    if figures is None:
        return None
    return {
        "rank": figures.rank,
        "loss_trend": asdict(figures.trend) if figures.trend else None,
        "spikes": [asdict(event) for event in figures.spikes],
        "instabilities": [event.told() for event in figures.instabilities],
    }


def _balance(report: Report) -> dict[str, Any] | None:
    """Evenness of the ranks' work; None for fewer than two."""
    t = report.rank_table
    names = ("pattern", "culprit", "load_imbalance", "exposed_comm_ms")
    if not t:
        return None
    texts = {"cause": t.cause or None, "source": t.source or None}
    return {name: getattr(t, name) for name in names} | texts


def _beside_others(report: Report, index: int) -> dict[str, Any]:
    """Excess work of a rank over the others; null for a single rank."""
    t = report.rank_table
    if not t:
        return dict.fromkeys(("slowest_share", "comm_share", "excess_phase", "excess_ms"))
    return {
        "slowest_share": float(t.slowest_share[index]),
        "comm_share": float(t.comm_share[index]),
        "excess_phase": t.excess_phase[index] or None,
        "excess_ms": float(t.excess_ms[index]),
    }


def _rank(rank: RankSummary) -> dict[str, Any]:
    return {name: getattr(rank, name) for name in _RANK}


def _gpu(gpu: GpuSummary) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in _GPU}
