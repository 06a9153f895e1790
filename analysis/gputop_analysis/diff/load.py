"""Other programs on the machine: what they take from a run is no change of the run."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.shares import run_queue
from gputop_analysis.view import RunView

BUSY_CORES = 0.3
"""Cores that programs outside the run must use before waiting for a core is put down to them."""


def foreign_wait_ms(view: RunView) -> float:
    """Milliseconds a step that the training threads were ready but other programs held the cores; mean of the ranks.

    0 where programs outside the run use less than ``BUSY_CORES``, or that is not known.
    """
    waits = []
    for rank in view.ranks:
        series, queue = view.per_rank[rank], run_queue(view, rank)
        if queue is None or foreign_cores(view, view.host_of(rank)) < BUSY_CORES:
            continue
        wall_ms = float(series.wall_ms[series.steady].mean())
        waits.append(queue.share.value * wall_ms)
    return sum(waits) / len(view.ranks) if waits else 0.0


def foreign_cores(view: RunView, host: str) -> float:
    """Cores in use on a host beyond those of the run's own processes, over the steps; 0 where it is not known."""
    files = view.record.hosts.get(host)
    ends = [s.rows["t_end_ns"] for s in view.per_rank.values() if len(s.rows)]
    if files is None or not ends:
        return 0.0
    begin, end = min(int(e[0]) for e in ends), max(int(e[-1]) for e in ends)
    samples = files.host.rows[(files.host.rows["t_ns"] >= begin) & (files.host.rows["t_ns"] <= end)]
    used = samples["cpu_pct"][np.isfinite(samples["cpu_pct"])]
    rows = files.process.rows[(files.process.rows["t_ns"] >= begin) & (files.process.rows["t_ns"] <= end)]
    if len(used) < 2 or len(rows) < 2:
        return 0.0
    machine = (files.state.context.get("host") or {}).get("cpu_count_machine") or samples["cpu_count"][-1]
    own_ns = 0
    for pid in np.unique(rows["pid"]):
        total = rows["cpu_ns_total"][rows["pid"] == pid]
        own_ns += int(total[-1] - total[0])
    own = own_ns / max(1, int(rows["t_ns"][-1] - rows["t_ns"][0]))
    return max(0.0, float(used.mean()) / 100 * int(machine) - own)
