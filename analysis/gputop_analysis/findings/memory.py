"""Memory: what grows without end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.model import Finding
from gputop_analysis.stats import mann_kendall, theil_sen
from gputop_analysis.text import duration
from gputop_analysis.view import Array, RunView

WINDOWS, SAMPLES_PER_WINDOW = 8, 3
MIN_SPAN_S = 2.0
MIN_GROWTH_BYTES, MIN_GROWTH_SHARE = 50 << 20, 0.05
STILL_GROWING = 0.35
"""Part of the growth that must fall in the second half: caches and lazy buffers fill early and then stand still."""
SOON_S = 3600.0


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that rises, from the minima of equal windows of time."""

    first_bytes: float
    last_bytes: float
    bytes_per_s: float
    span_s: float
    p: float


@finding(
    id="ME05",
    name="host memory growth",
    family="memory",
    cause="memory",
    trigger="resident memory rises by more than 50 MB and 5 %, steadily (Mann-Kendall p < 0.01 on minima of windows)",
    fix="do not keep tensors that hold a graph; arrays instead of lists of objects in datasets",
)
def host_memory_growth(view: RunView, spec: Spec) -> Finding | None:
    """A process keeps what it should let go."""
    grown = {rank: found for rank in view.ranks if (found := _rank_growth(view, rank))}
    if not grown:
        return None
    rank, growth = max(grown.items(), key=lambda item: item[1].bytes_per_s)
    series = view.per_rank[rank]
    steps_per_s = series.total_steps() / max(float(series.rows["wall_ns"].sum()) / 1e9, 1e-9)
    left_s, limit = _until_full(view, rank, growth, sum(g.bytes_per_s for g in grown.values()))
    full = f"; at this rate {limit} is full in {duration(left_s)}" if np.isfinite(left_s) else ""
    return spec.make(
        "high" if left_s < SOON_S else "medium",
        f"host memory of rank {rank} grows by {growth.bytes_per_s / 1e6 * 60:,.0f} MB a minute",
        f"resident memory rose from {growth.first_bytes / 1e6:,.0f} to {growth.last_bytes / 1e6:,.0f} MB in "
        f"{duration(growth.span_s)}, {growth.bytes_per_s / steps_per_s / 1e6:.2f} MB a step "
        f"(Theil-Sen slope of window minima, Mann-Kendall p = {growth.p:.2g}){full}",
        "look for a list or dict that gets longer each step; keep loss.item() or loss.detach() instead of loss; in a "
        "dataset keep NumPy arrays instead of lists of Python objects",
        rank=rank if len(grown) == 1 else everybody(view),
        confidence=1 - growth.p,
    )


def _rank_growth(view: RunView, rank: int) -> Growth | None:
    series = view.per_rank[rank]
    rows = series.rows[series.attempt_start :]
    rows = rows[(rows["rss_bytes"] > 0) & (rows["step"] >= 10)]
    return steady_growth(rows["t_end_ns"], rows["rss_bytes"])


def steady_growth(t_ns: Array, sizes: Array) -> Growth | None:
    """Judge a series of memory readings; None where they do not rise steadily, or are too few to tell."""
    if len(t_ns) < WINDOWS * SAMPLES_PER_WINDOW:
        return None
    quarter = len(sizes) // 4
    if sizes[-quarter:].min() - sizes[:quarter].min() < MIN_GROWTH_BYTES // 2:
        return None
    seconds = (t_ns - t_ns[0]) / 1e9
    span = float(seconds[-1])
    if span < MIN_SPAN_S:
        return None
    window = np.minimum((seconds / span * WINDOWS).astype(int), WINDOWS - 1)
    present = np.unique(window)
    minima = np.array([sizes[window == w].min() for w in present], np.float64)
    centres = (present + 0.5) * span / WINDOWS
    if len(minima) < 5:
        return None
    growth = minima[-1] - minima[0]
    trend = mann_kendall(minima)
    late = minima[-1] - minima[len(minima) // 2]
    if growth < max(MIN_GROWTH_BYTES, MIN_GROWTH_SHARE * minima[0]) or trend.tau <= 0 or trend.p >= 0.01:
        return None
    if late < STILL_GROWING * growth:
        return None
    return Growth(minima[0], minima[-1], theil_sen(centres, minima), span, trend.p)


def _until_full(view: RunView, rank: int, growth: Growth, bytes_per_s: float) -> tuple[float, str]:
    """Seconds until the container's limit or the host's memory is used up, and which of them it is."""
    host = view.record.hosts.get(view.host_of(rank))
    if host is None or not len(host.host.rows):
        return float("nan"), ""
    now = host.host.rows[-1]
    room = {"the host's memory": float(now["memory_available_bytes"])}
    if now["cgroup_memory_max_bytes"] > 0 and now["cgroup_memory_bytes"] >= 0:
        room["the container's limit"] = float(now["cgroup_memory_max_bytes"] - now["cgroup_memory_bytes"])
    limit = min(room, key=lambda name: room[name])
    return max(0.0, room[limit]) / max(bytes_per_s, growth.bytes_per_s, 1.0), limit
