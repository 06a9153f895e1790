"""Other programs on the machine: what they take from a run is no change of the run."""

from __future__ import annotations

from gputop_analysis.findings.cores import BUSY_CORES, foreign_cores
from gputop_analysis.findings.shares import run_queue
from gputop_analysis.view import RunView


def foreign_wait_ms(view: RunView) -> float:
    """Milliseconds a step that the training threads were ready but other programs held the cores;
    mean of the ranks.

    0 where programs outside the run use less than ``BUSY_CORES``, or that is not known.
    """
    waits = []
    for rank in view.ranks:
        series, queue = view.per_rank[rank], run_queue(view, rank)
        if queue is None or foreign_cores(view, view.host_of(rank)) < BUSY_CORES:
            continue
        wall_ms = float(series.wall_ms[series.steady].mean())
        waits.append(queue.share.value * wall_ms)
    if waits:
        return sum(waits) / len(view.ranks)
    return 0.0
