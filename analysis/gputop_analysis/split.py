"""One rank's wall time by phase as whole nanoseconds, on the best clock that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from gputop_agent import wire
from gputop_analysis.view import RunView


@dataclass(frozen=True, slots=True)
class WallSplit:
    """Nanoseconds; all of them but ``skipped`` and ``clock`` add up to ``wall``."""

    wall: int
    data: int
    h2d: int
    forward: int
    backward: int
    optimizer: int
    comm: int
    host: int
    set_up: int
    """Host code of a process's first step, and gputop's own one-off work."""
    checkpoint: int
    eval: int
    compile: int
    skipped: float
    """Part of the compute that belongs to steps whose update was skipped, 0 to 1."""
    clock: str

    def less(self, forward: int, backward: int) -> WallSplit:
        """Without so much of forward and backward, which the caller books elsewhere."""
        return replace(self, forward=self.forward - forward, backward=self.backward - backward)


def split_of(view: RunView, rank: int) -> WallSplit:
    """The split of a rank's window, on the device's clock where that measured enough steps."""
    rows = view.per_rank[rank].rows
    total = {name: int(rows[f"{name}_ns"].sum()) for name in wire.PHASES}
    first = (rows["flags"] & wire.F_FIRST) != 0
    agent = np.minimum(rows["agent_ns"], rows["other_ns"])
    set_up = int(np.where(first, rows["other_ns"], agent).sum())
    total["other"] -= set_up
    return WallSplit(
        wall=int(rows["wall_ns"].sum()),
        host=total.pop("other"),
        set_up=set_up,
        skipped=_skipped(rows),
        clock=view.per_rank[rank].clock,
        **total,
    )


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers that add up to ``total``, closest to ``weights`` (largest remainder)."""
    # floats cannot hold the nanoseconds of 104 days
    shares = [Fraction(weight) for weight in weights]
    total_share = sum(shares)
    if total_share <= 0:
        return [total, *[0] * (len(weights) - 1)]
    exact = [total * share / total_share for share in shares]
    parts = [int(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - exact[i])
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def _skipped(rows: np.ndarray) -> float:
    skipped = (rows["flags"] & wire.F_SCALER_SKIP) != 0
    if not skipped.any():
        return 0.0
    alone = skipped & (rows["n_steps"] <= 1)
    compute = rows["forward_ns"] + rows["backward_ns"] + rows["optimizer_ns"]
    return float(compute[alone].sum()) / max(1.0, float(compute.sum()))
