"""How much more each rank works than the median rank, of two than the other, over the steps: who is
slow, and when.
"""

from __future__ import annotations

import numpy as np

from gputop_analysis.view import Array, RunView
from gputop_analysis.waits import waits

PARTS = 60
"""Parts of the steps at most: DDP's timers are read at a few steps only."""


def rank_excess(view: RunView) -> tuple[tuple[int, ...], Array, Array] | None:
    """Ranks, ranks x parts: own work of the rank against that of ``reference``, less 1, and the
    middle step of each part.

    Own work is the wall time of a step without waiting for others: forward, data, other, and
    backward less what DDP says it waits. None for fewer than two ranks, or where waiting is not
    told apart (all ranks then look alike).
    """
    common = view.common
    if common is None or len(common) < 2 or not all(len(view.comm(rank)) for rank in common.ranks):
        return None
    wait_table = waits(view)
    if wait_table is None or wait_table.backward_compute_ms is None:
        return None
    count = min(PARTS, len(common), len(wait_table.backward_compute_ms))
    parts = np.array_split(np.arange(len(common)), count)
    phases = []
    for name in ("data", "h2d", "forward", "optimizer", "other"):
        phases.append(common.per_step_ms(f"{name}_ns"))
    own_ms = np.sum(phases, axis=0)
    means = np.stack([own_ms[part].mean(axis=0) for part in parts])
    rows = np.array_split(np.arange(len(wait_table.backward_compute_ms)), len(parts))
    means += np.stack([wait_table.backward_compute_ms[row].mean(axis=0) for row in rows])
    steps = np.array([common.edges[:-1][common.keep][part].mean() for part in parts])
    # the median of two would halve the difference
    usual = means[:, ::-1] if means.shape[1] == 2 else np.median(means, axis=1, keepdims=True)
    return common.ranks, (means / np.maximum(usual, 1e-9) - 1).T, steps


def reference(ranks: int) -> str:
    """What a rank of so many is compared with."""
    return "the other rank" if ranks == 2 else "the median rank"


def most_excess(ranks: tuple[int, ...], excess: Array, at_most: int) -> tuple[list[int], Array]:
    """The ranks of most own work, which hold the others up, in their order."""
    shown = np.sort(np.argsort(-excess.mean(axis=1), kind="stable")[:at_most])
    return [ranks[row] for row in shown], excess[shown]
