"""Series that the charts draw, cut down to a few hundred points."""

from __future__ import annotations

import numpy as np

from gputop_agent import wire
from gputop_analysis.series import mean_ms_by_bin
from gputop_analysis.stats import weighted_quantile
from gputop_analysis.view import Array, RunView
from gputop_analysis.waits import with_wait

PARTS = 160
"""Parts of the run in a chart over its steps."""


def phases_over_steps(view: RunView) -> tuple[Array, dict[str, Array]] | None:
    """Middle step of each part, and by phase the mean milliseconds a step over all ranks, waiting
    as one of them; None for too few steps.
    """
    series = [
        rank_series for rank_series in view.per_rank.values() if rank_series.after_set_up.sum()
    ]
    last = max((int(rank_series.steps[-1]) for rank_series in series), default=0)
    if last < 2:
        return None
    edges = np.linspace(0, last + 1, min(PARTS, last + 1) + 1)
    counts, totals = np.zeros(len(edges) - 1), np.zeros((len(wire.PHASES), len(edges) - 1))
    for rank_series in series:
        measured = rank_series.after_set_up
        part = np.clip(
            np.searchsorted(edges, rank_series.steps[measured], "right") - 1, 0, len(edges) - 2
        )
        counts += np.bincount(part, weights=rank_series.n_steps[measured], minlength=len(counts))
        for row, name in zip(totals, wire.PHASES, strict=True):
            row += np.bincount(
                part, weights=rank_series.rows[f"{name}_ns"][measured] / 1e6, minlength=len(counts)
            )
    filled = counts > 0
    if filled.sum() < 2:
        return None
    middles = ((edges[:-1] + edges[1:] - 1) / 2)[filled]
    means_ms = totals[:, filled] / counts[filled]
    measured_ms: dict[str, Array] = dict(zip(wire.PHASES, means_ms, strict=True))
    layers = with_wait(measured_ms, _waits_over_steps(view, edges)[filled])
    return middles, {name: values for name, values in layers.items() if values.any()}


def _waits_over_steps(view: RunView, edges: Array) -> Array:
    """Mean wait inside backward in each part, in ms a step; 0 where nothing is measured."""
    by_step = ((view.comm(rank)["step"], view.comm(rank)["wait_ns"]) for rank in view.ranks)
    return np.nan_to_num(mean_ms_by_bin(by_step, edges))


def chart_top(layers: dict[str, Array]) -> tuple[float, bool]:
    """Height in ms at which the stacked chart is cut so that one slow part does not flatten the
    others, and whether that cuts any.
    """
    totals = np.sum(list(layers.values()), axis=0)
    top = min(float(totals.max()), 3.0 * float(np.median(totals)))
    return 1.05 * max(top, 1e-9), bool(totals.max() > 1.05 * top)


def step_times(view: RunView) -> tuple[Array, Array, int] | None:
    """Edges and counts of the steps' times without the slowest 1 %, and how many steps
    those are.
    """
    series = []
    for rank_series in view.per_rank.values():
        if rank_series.after_set_up.sum():
            series.append(rank_series)
    if not series:
        return None
    walls = np.concatenate(
        [rank_series.wall_ms[rank_series.after_set_up] for rank_series in series]
    )
    weights = np.concatenate(
        [rank_series.n_steps[rank_series.after_set_up] for rank_series in series]
    )
    high = weighted_quantile(walls, weights, 0.99)
    shown = walls <= high
    if shown.sum() < 3 or walls[shown].min() >= high:
        return None
    counts, edges = np.histogram(walls[shown], bins=48, weights=weights[shown])
    return edges, counts, int(weights[~shown].sum())
