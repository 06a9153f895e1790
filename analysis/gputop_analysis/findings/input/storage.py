"""Input that waits for a disk or a file server."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.advice import MovedSetting, Option
from gputop_analysis.findings.dialect import loader_change, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.input.data_wait import WAITING, data_wait, severity_of, wait_source
from gputop_analysis.findings.input.loader_looks import (
    ENOUGH_LOOKS,
    Looks,
    Workers,
    looks,
    surely,
    workers,
)
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import Share, everybody
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

WAITING_WORKERS = 0.30
PRESSURE_PCT = 20.0
LEAST_READ_BYTES_PER_S = 1e6
"""Pressure counts as ours only where our workers read from storage."""


@finding(
    id="IN07",
    name="storage-limited",
    family="input",
    cause="input",
    trigger=f"data wait above {percent(WAITING)} of the step; the worker that is waited for waits "
    f"for storage (state D) in over {percent(WAITING_WORKERS)} of the looks, or the workers read "
    f"while the machine's I/O pressure is above {PRESSURE_PCT:.0f} %",
    fix="local disk, larger shards read in one piece, more workers to read ahead",
    explains=("IN01", "IN03", "IN06"),
    no_use="more workers: where the disk or its link is at its limit",
    reads=(
        "process.state of the workers (D: waiting for a disk), host.psi_io_some_pct, "
        "disk_read_bytes_total"
    ),
    silent="fewer than 20 steady steps; no pressure figures and no workers sampled",
    traps="the first epoch, which fills the page cache",
    seen_on=CPU,
)
def storage_limited(view: RunView, spec: Spec) -> Finding | None:
    """The workers wait for their files."""
    wait = data_wait(view)
    loader = (view.hello(wait.rank).get("dataloader") or {}) if wait else {}
    if wait is None or not wait.surely_above(WAITING) or not loader.get("num_workers"):
        return None
    run = Facts(view, wait.rank)
    loader_looks, crew = looks(view).get(wait.rank), workers(view).get(wait.rank)
    if loader_looks is None or loader_looks.waiting < ENOUGH_LOOKS:
        return None
    blocked = surely(loader_looks.states["D"], loader_looks.waiting)
    reads = crew is not None and crew.read_bytes_per_s > LEAST_READ_BYTES_PER_S
    pressure = _pressure_pct(view, wait.rank) if reads else 0.0
    if blocked <= WAITING_WORKERS and pressure <= PRESSURE_PCT:
        return None
    more = ""
    if crew:
        more = f"; the workers read {crew.read_bytes_per_s / 1e6:.1f} MB/s from storage"
    if pressure:
        more += f"; I/O pressure {pressure:.0f} %"
    return spec.make(
        severity=severity_of(wait),
        title=f"the workers wait for storage: {wait.ms.value:.1f} ms data wait a step",
        evidence=f"in {loader_looks.states['D']} of {loader_looks.waiting} looks at a waiting "
        f"fetch its worker waited for a disk or a file server (state D){more}"
        f"; {wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step wait for data, {wait.percent}",
        fix=(
            "copy the data set to a local disk or into memory, or store it in larger shards that "
            "are read in one piece",
            Option(
                f"raise num_workers from {loader['num_workers']} (waiting for a disk takes no "
                "core): " + loader_change(run, num_workers=2 * loader["num_workers"]),
                lever=MovedSetting("num_workers", 1),
                promises=False,
            ),
        ),
        rank=everybody(view),
        site=loader_site(run),
        confidence=0.9 if blocked > WAITING_WORKERS else 0.7,
        recoverable_ms_per_step=wait.ms.value,
        interval_ms_per_step=(wait.ms.low, wait.ms.high),
        proof=_proof(loader_looks, crew, pressure, wait),
    )


def _proof(looks: Looks, crew: Workers | None, pressure: float, wait: Share) -> Proof:
    inputs = (
        Input(
            "I/O pressure",
            pressure,
            "%",
            "host.psi_io_some_pct, median; 0 where the workers read little",
        ),
        Input(
            "read from storage",
            crew.read_bytes_per_s / 1e6 if crew else 0.0,
            "MB/s",
            "process.read_bytes_total",
        ),
        Input(
            "data wait per step",
            wait.mean_ms,
            "ms",
            f"{wait_source(wait)}, rank {wait.rank}, {wait.steps:,} steps",
        ),
    )
    formula = f"recoverable = sum(data wait) / steps = {wait.mean_ms:.3f} ms per step"
    if surely(looks.states["D"], looks.waiting) > WAITING_WORKERS:
        label = "at a waiting fetch whose worker waits for storage (state D)"
        return looks.proof(
            label, looks.states["D"], looks.waiting, WAITING_WORKERS, formula, *inputs
        )
    return Proof(
        statistic="median of the I/O pressure (some, 10 s)",
        value=pressure,
        threshold=PRESSURE_PCT,
        unit="%",
        formula=formula,
        inputs=inputs,
    )


def _pressure_pct(view: RunView, rank: int) -> float:
    """Median share of time that a process of the machine waited for I/O; 0: not told."""
    host, series = view.record.hosts.get(view.host_of(rank)), view.per_rank[rank]
    if host is None or not series.steady.any():
        return 0.0
    ends = series.steady_ends_ns
    rows = host.host.rows
    rows = rows[
        int(np.searchsorted(rows["t_ns"], ends[0])) : int(
            np.searchsorted(rows["t_ns"], ends[-1], "right")
        )
    ]
    pressures = rows["psi_io_some_pct"][np.isfinite(rows["psi_io_some_pct"])]
    return float(np.median(pressures)) if len(pressures) else 0.0
