"""Whether a run has settled, so that its figures stand for the rest of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.series import RankSeries
from gputop_analysis.text import counted
from gputop_analysis.view import Array, RunView
from gputop_probes.record.reader import RunRecord

WINDOW_STEPS = 400
ENOUGH_STEPS, ENOUGH_SECONDS = 50, 2.0
BLOCKS = 10
STEP_TIME_CV, UTIL_STD_PCT, MEMORY_GROWTH = 0.05, 5.0, 0.02
UTIL_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Stability:
    """The judgement, and what it was made from."""

    stable: bool
    reasons: tuple[str, ...]
    """Why not, one line each; empty when stable."""
    step_time_cv: float
    """Coefficient of variation of block medians of step time, worst rank; NaN: too few."""
    steps: int
    """Steady steps of the rank with the fewest."""


def stable(record: RunRecord) -> Stability:
    """Judge step time, memory and utilisation of the last few hundred steps.

    Stable means: at least 50 steady steps and 2 s of them on every rank, block medians of the step
    time within 5 %, memory within 2 %, and a standard deviation of GPU utilisation below 5 points
    where it is measured.
    """
    view = RunView(record, WINDOW_STEPS)
    steps = min((int(s.n_steps[s.steady].sum()) for s in view.per_rank.values()), default=0)
    seconds = min(
        (float(s.rows["wall_ns"][s.steady].sum()) / 1e9 for s in view.per_rank.values()),
        default=0.0,
    )
    if steps < ENOUGH_STEPS or seconds < ENOUGH_SECONDS:
        so_far = f"{counted(steps, 'steady step')} in {seconds:.1f} s so far"
        reason = f"{so_far}, {ENOUGH_STEPS} and {ENOUGH_SECONDS:.0f} s are needed"
        return Stability(False, (reason,), float("nan"), steps)
    variation = max(_block_variation(series) for series in view.per_rank.values())
    if variation < STEP_TIME_CV:
        reasons = []
    else:
        reasons = [f"step time still varies by {variation * 100:.0f} %"]
    for series in view.per_rank.values():
        reasons += _memory_reasons(series)
    reasons += _utilisation_reasons(view)
    return Stability(not reasons, tuple(reasons), variation, steps)


def _block_variation(series: RankSeries) -> float:
    blocks = np.array_split(series.wall_ms[series.steady], BLOCKS)
    medians = [float(np.median(block)) for block in blocks if len(block)]
    return float(np.std(medians) / np.mean(medians))


def _memory_reasons(series: RankSeries) -> list[str]:
    reasons = []
    for column, name in (("reserved_bytes", "GPU memory"), ("rss_bytes", "host memory")):
        sizes = series.rows[column][series.steady]
        sizes = sizes[sizes >= 0]
        half = len(sizes) // 2
        if half and sizes[half:].max() > (1 + MEMORY_GROWTH) * sizes[:half].max():
            reasons.append(f"{name} of rank {series.rank} still grows")
    return reasons


def _utilisation_reasons(view: RunView) -> list[str]:
    reasons = []
    for host in view.record.hosts.values():
        rows: Array = np.asarray(host.gpu.rows[-UTIL_SAMPLES * max(1, len(host.state.gpus)) :])
        ours = {gpu.index for gpu in host.state.gpus if gpu.ours} or set(
            np.unique(rows["index"]).tolist()
        )
        for index in sorted(ours):
            used = rows["util_pct"][rows["index"] == index]
            used = used[np.isfinite(used)]
            if len(used) >= 4 and used.std() >= UTIL_STD_PCT:
                reasons.append(f"utilisation of GPU {index} varies by {used.std():.0f} points")
    return reasons
