"""Memory that is mapped anew in each step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.stats import Interval
from gputop_analysis.view import Array, RunView

FAULTS_PER_STEP = 5000.0
FAULT_US = Interval(0.5, 0.25, 1.0)
"""What one page fault costs, with its range: the kernel finds a page, clears its 4 KiB and maps it."""
FAULTS_LEAST_SHARE = 0.02


@finding(
    id="HO12",
    name="page-fault storm",
    family="host",
    cause="host",
    trigger="over 5,000 page faults a step, which cost over 2 % of it at 0.5 us each",
    fix="reuse buffers instead of allocating them each step; keep freed memory in the process",
)
def page_fault_storm(view: RunView, spec: Spec) -> Finding | None:
    """Large buffers are allocated and given back each step, and the kernel maps and clears every page anew."""
    found = {rank: one for rank in view.ranks if (one := _faults_per_step(view, rank))}
    rank = max(found, key=lambda one: found[one].per_step, default=None)
    if rank is None:
        return None
    one = found[rank]
    cost = Interval(*(one.per_step * us / 1e3 for us in FAULT_US))
    if one.per_step <= FAULTS_PER_STEP or cost.value <= FAULTS_LEAST_SHARE * one.wall_ms:
        return None
    others = [other.per_step for r, other in found.items() if r != rank]
    return spec.make(
        "high" if cost.value > 0.25 * one.wall_ms else "medium",
        f"{one.per_step:,.0f} page faults a step: memory is mapped anew each time",
        f"{one.per_step:,.0f} minor faults a step over {one.steps:,} steps, {one.per_step * 4 / 1024:,.0f} MiB "
        f"if they are of 4 KiB: at {FAULT_US.low} to {FAULT_US.high} us each {cost.low:.1f} to {cost.high:.1f} ms of "
        f"{one.wall_ms:.1f} ms a step",
        "allocate large buffers once and write into them (out=, copy_), or keep freed memory in the process: "
        "MALLOC_TRIM_THRESHOLD_=-1 MALLOC_MMAP_THRESHOLD_=4294967296 in the environment, or LD_PRELOAD of jemalloc",
        rank=rank if all(one.per_step > 2 * other for other in others) else None,
        confidence=0.7,
        recoverable_ms_per_step=cost.value,
        interval_ms_per_step=(cost.low, cost.high),
        proof=Proof(
            "minor page faults per step",
            one.per_step,
            FAULTS_PER_STEP,
            "",
            f"recoverable = faults x {FAULT_US.value} us = {cost.value:.3f} ms per step (estimate)",
            (
                Input("faults per step", one.per_step, "", f"process.minor_faults_total, rank {rank}, interpolated"),
                Input("cost of a fault", FAULT_US.value, "us", "typical of x86-64 servers, 0.25 to 1"),
                Input("step time", one.wall_ms, "ms", f"steps.wall_ns, rank {rank}, {one.steps:,} steady steps"),
            ),
        ),
    )


class _Faults(NamedTuple):
    per_step: float
    wall_ms: float
    steps: int


def _faults_per_step(view: RunView, rank: int) -> _Faults | None:
    """Mean over the time from the warm-up's end to the last step; None where too little was sampled."""
    rows, series = view.rank_processes.get(rank), view.per_rank[rank]
    if rows is None or not series.steady.any():
        return None
    steady = series.rows[series.steady]
    rows = _between(rows, int(steady["t_end_ns"][0]), int(steady["t_end_ns"][-1]) + 1)
    if len(rows) < 3 or rows["minor_faults_total"][0] < 0:
        return None
    seconds = float(rows["t_ns"][-1] - rows["t_ns"][0]) / 1e9
    steps, wall_s = int(series.n_steps[series.steady].sum()), float(steady["wall_ns"].sum()) / 1e9
    per_s = float(rows["minor_faults_total"][-1] - rows["minor_faults_total"][0]) / max(seconds, 1e-9)
    return _Faults(per_s * wall_s / steps, 1e3 * wall_s / steps, steps) if seconds >= 1.0 else None


def _between(rows: Array, begin_ns: int, end_ns: int) -> Array:
    first, last = np.searchsorted(rows["t_ns"], [begin_ns, end_ns])
    return rows[int(first) : int(last)]
