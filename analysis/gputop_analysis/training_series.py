"""Loss, gradient norm, rate, loss scale, step time and memory of a rank, on one axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_agent import wire
from gputop_analysis.units import GIB
from gputop_analysis.view import Array, RunView

POINTS = 3000
"""Points of a series at most: more than a screen's columns, judged in a millisecond."""


@dataclass(frozen=True, slots=True)
class Series:
    """One rank's values, a point for each record or, in long runs, for several records in a row.

    All arrays have one length and share the axis ``step``. A value that was not measured is NaN.
    """

    first_step: Array
    """First step of each point, from 0."""
    step: Array
    """Last step of each point; a point of ``first_step[i] == step[i]`` is a single step."""
    t_ns: Array
    """When the point ended, Unix epoch."""
    loss: Array
    """Mean of the finite losses that are known of the point."""
    loss_max: Array
    """The largest of them: spikes are looked for here, because a mean hides them."""
    nonfinite: Array
    """Whether a loss of the point was NaN or infinite."""
    grad_norm: Array
    """Largest gradient norm before clipping, as ``clip_grad_norm_`` returned it."""
    lr: Array
    """Learning rate of the first parameter group at the point's end."""
    loss_scale: Array
    """GradScaler's scale at the point's end."""
    step_time_ms: Array
    """Mean wall time of a step."""
    step_time_max_ms: Array
    """The longest single step; NaN for points with compile, checkpoint, evaluation, set-up."""
    memory_gib: Array
    """Largest memory; of what, ``Numerics.memory_of`` says."""

    def __len__(self) -> int:
        return len(self.step)


def collect(view: RunView, rank: int, points: int = POINTS) -> Series:
    """The series of a rank's last attempt, joined to ``points`` records with their extremes."""
    rank_series = view.per_rank[rank]
    rows, counts, lasts = (
        rank_series.rows[rank_series.attempt_start :],
        rank_series.n_steps[rank_series.attempt_start :],
        rank_series.steps[rank_series.attempt_start :],
    )
    starts = np.unique(
        np.linspace(0, len(rows), min(points, len(rows)), endpoint=False).astype(np.int64)
    )
    ends = np.append(starts[1:], len(rows)) - 1
    loss, loss_max, grad_norm = _with_late_values(view, rank, rows, lasts)
    steady = (rows["flags"] & wire.F_UNSTEADY) == 0
    steps = np.add.reduceat(counts, starts) if len(starts) else counts
    longest = np.where(steady, rows["wall_max_ns"] / 1e6, np.nan)
    memory = np.where(
        rows["peak_allocated_bytes"] > 0, rows["peak_allocated_bytes"], rows["rss_bytes"]
    )
    return Series(
        first_step=lasts[starts] - counts[starts] + 1,
        step=lasts[ends],
        t_ns=np.asarray(rows["t_end_ns"])[ends],
        loss=_mean(loss, starts),
        loss_max=np.fmax.reduceat(loss_max, starts),
        nonfinite=np.bitwise_or.reduceat(rows["flags"], starts) & wire.F_NONFINITE != 0,
        grad_norm=np.fmax.reduceat(grad_norm, starts),
        lr=rows["lr"][ends].astype(np.float64),
        loss_scale=rows["loss_scale"][ends].astype(np.float64),
        step_time_ms=np.add.reduceat(rows["wall_ns"], starts) / 1e6 / np.maximum(steps, 1),
        step_time_max_ms=np.fmax.reduceat(longest, starts),
        memory_gib=np.fmax.reduceat(np.where(memory > 0, memory / GIB, np.nan), starts),
    )


def _with_late_values(
    view: RunView, rank: int, rows: Array, lasts: Array
) -> tuple[Array, Array, Array]:
    """Loss, largest loss and gradient norm per record; a GPU's late ones at their steps."""
    loss = _finite(rows["loss"])
    if "loss_max" in (rows.dtype.names or ()):
        loss_max = np.fmax(loss, _finite(rows["loss_max"]))
    else:
        loss_max = loss.copy()
    grad_norm = rows["grad_norm"].astype(np.float64)
    late = view.device(rank)
    at = np.searchsorted(lasts, late["step"].astype(np.int64))
    inside = at < len(lasts)
    late, at = late[inside], at[inside]
    for target, column in ((loss, "loss"), (loss_max, "loss"), (grad_norm, "grad_norm")):
        np.fmax.at(target, at, _finite(late[column]))
    return loss, loss_max, grad_norm


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.nan).astype(np.float64)


def _mean(values: Array, starts: Array) -> Array:
    finite = np.isfinite(values)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    total = np.add.reduceat(np.where(finite, values, 0.0), starts)
    return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)
