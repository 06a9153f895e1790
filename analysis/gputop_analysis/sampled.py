"""What was measured, what was estimated from windows, and gputop's own cost a step."""

from __future__ import annotations

import math

import numpy as np

from gputop_agent import wire
from gputop_analysis.overview import OwnCost, Sampled
from gputop_analysis.series import picked
from gputop_analysis.view import RunView

Z95 = 1.96
MIN_WINDOWS = 10
"""Fewer give no interval."""


def sampled(view: RunView) -> Sampled | None:
    """How many of the window's steps were measured; None where all were.

    The half-width is that of a ratio of sums over the windows of steps as blocks (Cochran 1977,
    6.4): of the phase and the rank where it is widest.
    """
    steps = estimated = 0
    widths = []
    for series in view.per_rank.values():
        flags = series.rows["flags"]
        steps += series.total_steps()
        estimated += int(series.n_steps[(flags & wire.F_ESTIMATED) != 0].sum())
        widths.append(_half_width(picked(series.rows, (flags & wire.F_WINDOW) != 0)))
    if not estimated:
        return None
    finite = [width for width in widths if math.isfinite(width)]
    return Sampled(steps - estimated, steps, max(finite, default=float("nan")))


def _half_width(rows: np.ndarray) -> float:
    """Of the 95 % interval of the widest phase's share of the time, 0 to 1; NaN: too few."""
    n = len(rows)
    if n < MIN_WINDOWS:
        return float("nan")
    walls = rows["wall_ns"].astype(np.float64)
    mean = walls.mean()
    widest = 0.0
    for name in wire.PHASES:
        times = rows[f"{name}_ns"].astype(np.float64)
        residuals = times - times.sum() / walls.sum() * walls
        error = math.sqrt(float(residuals @ residuals) / (n * (n - 1))) / mean
        widest = max(widest, Z95 * error)
    return widest


def own_cost(view: RunView) -> OwnCost | None:
    """Share of a step that gputop itself took: mean of what ranks told last."""
    newest = {event["rank"]: event for event in view.record.events("own_cost") if "rank" in event}
    costs = [
        event for event in newest.values() if event.get("step_us", 0) > 0 and "cost_us" in event
    ]
    if not costs:
        return None
    share = _mean([event["cost_us"] / event["step_us"] for event in costs])
    intervals = [
        (event["low_us"] / event["step_us"], event["high_us"] / event["step_us"])
        for event in costs
        if event.get("low_us") is not None and event.get("high_us") is not None
    ]
    low = high = float("nan")
    if len(intervals) == len(costs):
        low = _mean([low for low, _ in intervals])
        high = _mean([high for _, high in intervals])
    of_threads = [event["thread_share"] for event in costs if "thread_share" in event]
    return OwnCost(
        share,
        low,
        high,
        _mean([event["cost_us"] for event in costs]),
        str(costs[0].get("method", "")),
        _mean(of_threads) if of_threads else None,
    )


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
