"""Work that is split unevenly inside the model: pipeline stages and experts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import ENOUGH_STEPS, run_queue
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.pipeline import expected_bubble, measured_bubble, micro_batches_for
from gputop_analysis.stages import chunks_of, micro_batches, pipeline_ranks
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView

EXCESS = 0.05
UNEVEN = 0.5
"""Coefficient of variation of tokens per expert from which routing is uneven."""
SETTLED = 50
"""First steps that are left out: early in a training, routing has not settled."""
NEWEST = 2000
"""Events of a host that are looked at, newest first."""
_EXPERT = re.compile(r"^(?P<what>.*?expert.*?)[/_.\[ ]?(?P<number>\d+)\]?$", re.IGNORECASE)
_AMOUNT = re.compile(r"token|count|load|usage|assign|freq|rout", re.IGNORECASE)
"""Words of which one must be in the name: a loss per expert says nothing of routing."""


@finding(
    id="CR13",
    name="pipeline bubble",
    family="ranks",
    cause="comm",
    trigger=f"stages idle {percent(EXCESS)} of the step more than (p - 1) / (m + p - 1), the wait "
    "for a core taken off",
    fix="more micro-batches, stages of equal time, an interleaved schedule",
    explains=("CR01", "CR02", "CR05", "CR06"),
    no_use="more micro-batches: where they would be too small for the device",
    reads=(
        "torch's pipeline schedule, else the mesh's axis; time in its waits against (p - "
        "1) / (m + p - 1)"
    ),
    silent="no pipeline seen; micro-batches not known; waits that the host does not see (on a GPU)",
    traps="interleaved schedules, whose bubble is smaller",
    seen_on=CPU,
)
def pipeline_bubble(view: RunView, spec: Spec) -> Finding | None:
    """Stages wait for each other beyond what the schedule makes them."""
    stages = pipeline_ranks(view)
    if stages is None:
        return None
    steady = [rank_series.steady_rows for rank_series in view.per_rank.values()]
    if len(steady) < stages or any(rows["n_steps"].sum() < ENOUGH_STEPS for rows in steady):
        return None
    wall = np.array([rows["wall_ns"].sum(dtype=np.float64) for rows in steady])
    waited = np.array([rows["comm_ns"].sum(dtype=np.float64) for rows in steady])
    updates = float(np.mean([rows["n_steps"].sum() for rows in steady]))
    counted = round(max(float(rows["micro_batches"].sum()) for rows in steady) / updates)
    micro, chunks = micro_batches(view) or counted, chunks_of(view)
    if micro < 1 or not waited.any():
        return None
    expected, measured = (
        expected_bubble(stages, micro, chunks),
        measured_bubble(wall - waited, wall),
    )
    queues = [queue.value for rank in view.ranks if (queue := run_queue(view, rank))]
    queued = max(queues, default=0.0)  # a stage that is queued for a core makes the others idle
    excess = measured - expected - queued
    if not excess > EXCESS:
        return None
    ms = float(wall.mean()) / updates / 1e6
    won_ms = ms * (1 - (1 - measured) / (1 - expected - queued))
    slowest = int(np.argmin(waited))
    return spec.make(
        severity="medium",
        title=f"pipeline stages idle {100 * measured:.0f} % of the step, {100 * expected:.0f} % "
        "would do",
        evidence=f"{stages} stages, {micro} micro-batches a step: expected {_formula(chunks)} = "
        f"{100 * expected:.1f} %, measured {100 * measured:.1f} % of {ms:.1f} ms; rank "
        f"{view.ranks[slowest]} idles least",
        fix=f"move layers away from the stage of rank {view.ranks[slowest]}; "
        f"{micro_batches_for(stages, max(expected / 2, 0.01), chunks)} micro-batches would halve "
        "the unavoidable part",
        confidence=0.7,
        recoverable_ms_per_step=won_ms,
        proof=Proof(
            statistic=f"idle share of all stages - {_formula(chunks)} - share of the wait for a "
            "core",
            value=100 * excess,
            threshold=100 * EXCESS,
            unit="%",
            formula="idle share = sum(comm) / sum(wall) over the ranks; recoverable = step time x "
            "(1 - (1 - idle share) / (1 - expected - queued)): the same work with no more than "
            "the expected idle time",
            inputs=(
                Input("stages", stages, "", "hello.parallel.pipeline or .mesh"),
                Input("parts on a stage", chunks, "", "hello.parallel.pipeline.here"),
                Input(
                    "micro-batches",
                    micro,
                    "per step",
                    "hello.parallel.pipeline, else steps.micro_batches",
                ),
                Input(
                    "idle",
                    100 * measured,
                    "%",
                    "steps.comm_ns / steps.wall_ns, steady steps of all ranks",
                ),
                Input(
                    "queued",
                    100 * queued,
                    "%",
                    "process.run_wait_ns_total, the rank that waits most for a core",
                ),
            ),
        ),
    )


def _formula(chunks: int) -> str:
    if chunks == 1:
        return "(p - 1) / (m + p - 1)"
    return f"(p - 1) / ({chunks} m + p - 1)"


@finding(
    id="CR14",
    name="experts unevenly used",
    family="ranks",
    cause="straggler",
    trigger="logged tokens per expert vary by more than half of their mean (coefficient of "
    "variation), routing settled",
    fix="auxiliary load-balancing loss, capacity factor, expert-choice routing",
    no_use="early in a training, before the router has settled",
    reads="tokens per expert as logged with gputop.log",
    silent="nothing logged",
    traps="the first steps, before routing settles",
    seen_on=CPU,
)
def uneven_experts(view: RunView, spec: Spec) -> Finding | None:
    """Some experts get most of the tokens."""
    logged = _expert_tokens(view)
    if logged is None:
        return None
    name, numbers, tokens = logged
    means = tokens.mean(axis=0)
    spread = tokens.std(axis=1) / np.maximum(tokens.mean(axis=1), 1e-12)
    middle = float(np.median(spread))
    if not middle > UNEVEN:
        return None
    busiest = int(means.argmax())
    return spec.make(
        severity="medium",
        title=f"tokens per expert vary by {100 * middle:.0f} % of their mean: expert "
        f"{numbers[busiest]} gets most",
        evidence=f"{name}: coefficient of variation {middle:.2f} (median of {len(tokens):,} "
        f"logged steps) over {len(numbers)} experts; expert {numbers[busiest]} gets "
        f"{means[busiest] / means.mean():.1f} times its share",
        fix="raise the load-balancing loss (aux_loss_coef), bound it with a capacity factor, or "
        "use expert-choice routing",
        confidence=0.8,
        proof=Proof(
            statistic="median over steps of std(tokens per expert) / mean(tokens per expert)",
            value=middle,
            threshold=UNEVEN,
            unit="",
            formula="values that the script gave to gputop.log under one name and a number per "
            "expert",
            inputs=(
                Input("experts", len(numbers), "", f"log events, {name}"),
                Input("logged steps", len(tokens), "", f"newest, past step {SETTLED}"),
                Input(
                    "largest / mean",
                    float(means[busiest] / means.mean()),
                    "",
                    "means over those steps",
                ),
            ),
        ),
    )


def _newest_logs(view: RunView) -> Iterator[dict[str, Any]]:
    for host in view.record.hosts.values():
        for event in islice(reversed(host.events.items), NEWEST):
            if event["type"] == "log" and int(event.get("step") or 0) >= SETTLED:
                yield event


def _expert_tokens(view: RunView) -> tuple[str, list[int], Array] | None:
    """Name, numbers of the experts, and logged steps x experts; None where none were logged."""
    rows: list[dict[int, float]] = []
    name = ""
    for event in _newest_logs(view):
        values = event.get("values") or {}
        matched = [
            (match, float(value))
            for key, value in values.items()
            if (match := _EXPERT.match(str(key)))
        ]
        matched = [(match, value) for match, value in matched if _AMOUNT.search(match["what"])]
        if len(matched) >= 2:
            rows.append({int(match["number"]): value for match, value in matched})
            name = name or matched[0][0]["what"]
    rows = [row for row in rows if row.keys() == rows[0].keys()]
    if len(rows) < ENOUGH_STEPS:
        return None
    numbers = sorted(rows[0])
    tokens = np.array([[row[number] for number in numbers] for row in rows])
    if np.isfinite(tokens).all() and (tokens >= 0).all():
        return (name.rstrip("/_.[ "), numbers, tokens)
    return None
