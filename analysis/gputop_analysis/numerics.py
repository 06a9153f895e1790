"""A rank's training series, where they stand out, and where the loss goes.

``numerics(view)`` is what the Numerics screen and the reports draw; the findings about numerics use
the same series.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.spikes import Instability, Spike, instabilities, spikes_of
from gputop_analysis.training_series import POINTS, Series, collect
from gputop_analysis.trend import LossTrend, loss_trend
from gputop_analysis.view import Array, RunView


@dataclass(frozen=True, slots=True)
class Numerics:
    """One rank's series, where they stand out, and where the loss goes."""

    rank: int
    series: Series
    memory_of: str
    """``allocated`` (torch's peak on the GPU) or ``resident`` (of the process, on a CPU run)."""
    spikes: tuple[Spike, ...]
    """Points that stand out from the 100 before them, in the order of steps."""
    instabilities: tuple[Instability, ...]
    """Spikes of two quantities or more within a few steps of each other."""
    trend: LossTrend | None
    """Where the loss goes over the newest 1000 steps or more; None where it cannot be told."""

    def marks(self, axis: str) -> Array:
        """Indices into the series at which ``axis`` (``loss``, ``grad_norm``, ...) gets a mark."""
        return np.array([spike.index for spike in self.spikes if spike.axis == axis], np.int64)


def numerics(view: RunView, rank: int | None = None, points: int = POINTS) -> Numerics | None:
    """Numerics of a rank (by default the first) over the window; None without steps."""
    rank = view.ranks[0] if rank is None and view.ranks else rank
    if rank not in view.per_rank or not len(view.per_rank[rank].rows):
        return None
    key = f"numerics of {rank} in {points}"
    if key not in view.known:
        view.known[key] = _numerics(view, rank, points)
    return view.known[key]


def _numerics(view: RunView, rank: int, points: int) -> Numerics:
    series = collect(view, rank, points)
    spikes = spikes_of(series)
    on_gpu = bool((view.per_rank[rank].rows["peak_allocated_bytes"] > 0).any())
    trend = loss_trend(series.first_step, series.step, series.loss)
    return Numerics(
        rank, series, "allocated" if on_gpu else "resident", spikes, instabilities(spikes), trend
    )
