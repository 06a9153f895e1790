"""Does memory grow steadily? One judgement for resident set, GPU allocator and peaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gputop_analysis.model import Input, Proof
from gputop_analysis.series import picked
from gputop_analysis.stats import mann_kendall, theil_sen
from gputop_analysis.trend import SURE_P
from gputop_analysis.view import Array, RunView

WINDOWS, LEAST_WINDOWS, SAMPLES_PER_WINDOW = 8, 7, 3
MIN_SPAN_S, MIN_SPAN_OF_CYCLES_S = 2.0, 20.0
"""With backward(create_graph=True) parameters and gradients form cycles for the collector."""
MIN_GROWTH_BYTES, MIN_GROWTH_SHARE = 50 << 20, 0.05
SOON_S = 3600.0
"""Memory that is full within this time is a matter of now."""
STILL_GROWING = 0.3
"""Part of the growth in the second half: caches and lazy buffers fill early, then stand."""
ONE_RISE = 0.5
"""Part of the growth from one window to the next: more is a jump, as of a profile that was asked
for, and not what gets longer with each step.
"""
AFTER_STEP = 10
"""Before it, buffers and the optimizer's state are made."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that rises, from one value for each of equal windows of time."""

    rank: int
    column: str
    """Table and column of the record."""
    first_bytes: float
    last_bytes: float
    bytes_per_s: float
    span_s: float
    p: float
    readings: int

    def proof(self, bytes_per_step: float, *inputs: Input, formula: str = "") -> Proof:
        """What a finding about this growth rests on."""
        source = f"{self.column}, rank {self.rank}, {self.readings:,} readings in {WINDOWS} windows"
        return Proof(
            statistic="Mann-Kendall p (two-sided) of one value for each window of time; "
            "raised below the threshold",
            value=self.p,
            threshold=SURE_P,
            unit="",
            formula=formula
            or "growth = Theil-Sen slope of the windows' values; a window's value is its minimum",
            inputs=(
                Input("first window", self.first_bytes / 1e6, "MB", source),
                Input("last window", self.last_bytes / 1e6, "MB", source),
                Input("span", self.span_s, "s", source),
                Input("growth per second", self.bytes_per_s / 1e6, "MB/s", "Theil-Sen slope"),
                Input("growth per step", bytes_per_step / 1e6, "MB", "slope / steps per second"),
                *inputs,
            ),
        )


def rank_growth(
    view: RunView, rank: int, column: str, of_window: Callable[[Array], float] = np.min
) -> Growth | None:
    """Growth of a memory column of a rank's last process; ``of_window`` makes one value of a
    window's readings.
    """
    key = f"growth of {column} on {rank} by {of_window.__name__}"
    if key not in view.known:
        series = view.per_rank[rank]
        rows = series.rows[series.attempt_start : -1]  # the last may be closed as the process ends
        view.known[key] = None
        if _may_have_grown(rows[column], of_window):
            rows = picked(rows, (rows[column] > 0) & (rows["step"] >= AFTER_STEP))
            if view.hello(rank).get("create_graph_by_backward"):
                least_s = MIN_SPAN_OF_CYCLES_S
            else:
                least_s = MIN_SPAN_S
            view.known[key] = steady_growth(
                rows["t_end_ns"],
                rows[column],
                rank=rank,
                column=f"steps.{column}",
                of_window=of_window,
                least_s=least_s,
            )
    return view.known[key]


def _may_have_grown(sizes: Array, of_window: Callable[[Array], float]) -> bool:
    """Whether the last quarter exceeds the first by half a finding's growth: ends most ranks."""
    few = len(sizes) // 4
    if not few:
        return False
    first, last = float(of_window(sizes[:few])), float(of_window(sizes[-few:]))
    return last - first >= 0.5 * max(MIN_GROWTH_BYTES, MIN_GROWTH_SHARE * first)


def steady_growth(
    t_ns: Array,
    sizes: Array,
    *,
    rank: int,
    column: str,
    of_window: Callable[[Array], float] = np.min,
    least_s: float = MIN_SPAN_S,
    least_bytes: float = MIN_GROWTH_BYTES,
    few: bool = False,
) -> Growth | None:
    """Judge memory readings; None where they do not rise steadily, are too few or too short.

    Where they are ``few``, a window is as many readings as any other; else a stretch of time.
    """
    if len(t_ns) < WINDOWS * (1 if few else SAMPLES_PER_WINDOW):
        return None
    seconds = (t_ns - t_ns[0]) / 1e9
    span = float(seconds[-1])
    if span < least_s:
        return None
    if few:  # windows of time would stay empty where readings are far apart
        window = np.arange(len(sizes)) * WINDOWS // len(sizes)
    else:
        window = np.minimum((seconds / span * WINDOWS).astype(int), WINDOWS - 1)
    present = np.unique(window)
    values = np.array([of_window(sizes[window == w]) for w in present], np.float64)
    if few:
        centres = np.array([seconds[window == w].mean() for w in present])
    else:
        centres = (present + 0.5) * span / WINDOWS
    if len(values) < LEAST_WINDOWS:
        return None
    values, centres = values[1:], centres[1:]  # the first one still makes what the others reuse
    growth = values[-1] - values[0]
    trend = mann_kendall(values)
    late = values[-1] - max(values[len(values) // 2], _midway(sizes, of_window))
    if (
        growth < max(least_bytes, MIN_GROWTH_SHARE * values[0])
        or trend.tau <= 0
        or trend.p >= SURE_P
    ):
        return None
    if late < STILL_GROWING * growth or np.diff(values).max() > ONE_RISE * growth:
        return None
    slope = theil_sen(centres, values)
    return Growth(rank, column, values[0], values[-1], slope, span, trend.p, len(sizes))


def _midway(sizes: Array, of_window: Callable[[Array], float]) -> float:
    """Around the middle reading: what fills by steps looks steady where first steps were slow."""
    half, middle = max(1, len(sizes) // (2 * WINDOWS)), len(sizes) // 2
    return float(of_window(sizes[middle - half : middle + half]))


def per_step(view: RunView, growth: Growth) -> float:
    """Bytes a step."""
    series = view.per_rank[growth.rank]
    steps_per_s = series.total_steps() / max(float(series.rows["wall_ns"].sum()) / 1e9, 1e-9)
    return growth.bytes_per_s / steps_per_s
