"""Energy of the run's GPUs, from the counters that NVML keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.series import picked
from gputop_analysis.text import counted
from gputop_analysis.view import Array, RunView, once_per_view

ENOUGH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Energy:
    """Over the window's steps."""

    watts: float
    """Mean power of all of the run's GPUs together: growth of their energy counters / time."""
    joules_per_sample: float | None
    """None where samples are not counted."""
    joules_per_token: float | None
    gpus: int
    source: str


@once_per_view
def energy(view: RunView) -> Energy | None:
    """Power and energy per sample; None unless each GPU has a counter, read for 5 s or more."""
    span = _span(view)
    if span is None:
        return None
    powers: list[float] = []
    for host in view.record.hosts.values():
        rows = np.asarray(host.gpu.rows[-50_000:])
        rows = rows[(rows["t_ns"] >= span[0]) & (rows["t_ns"] <= span[1])]
        used = {info.index for info in host.state.gpus if info.ours}
        powers += [_watts(rows[rows["index"] == index]) for index in sorted(used)]
    if not powers or not all(np.isfinite(powers)):
        return None
    watts = float(sum(powers))
    return Energy(
        watts,
        _per(watts, _rate(view, "samples")),
        _per(watts, _rate(view, "tokens")),
        len(powers),
        f"gpu.energy_mj_total of {counted(len(powers), 'GPU')} over "
        f"{(span[1] - span[0]) / 1e9:.0f} s; steps.samples, tokens",
    )


def _span(view: RunView) -> tuple[int, int] | None:
    """From the end of the first step of the window to the end of the last one."""
    ends = [series.rows["t_end_ns"] for series in view.per_rank.values() if len(series.rows)]
    if ends:
        return (min(int(e[0]) for e in ends), max(int(e[-1]) for e in ends))
    return None


def _watts(rows: Array) -> float:
    rows = rows[rows["energy_mj_total"] > 0]
    if len(rows) < 2:
        return float("nan")
    seconds = float(rows["t_ns"][-1] - rows["t_ns"][0]) / 1e9
    joules = float(rows["energy_mj_total"][-1] - rows["energy_mj_total"][0]) / 1e3
    if seconds >= ENOUGH_SECONDS and joules >= 0:
        return joules / seconds
    return float("nan")


def _rate(view: RunView, column: str) -> float:
    """Per second, over all ranks, in the time that the steps took."""
    total = 0.0
    for series in view.per_rank.values():
        rows = picked(series.rows, series.after_set_up)
        seconds = float(rows["wall_ns"].sum()) / 1e9
        if seconds > 0:
            total += float(rows[column].sum(dtype=np.float64)) / seconds
    return total


def _per(watts: float, rate: float) -> float | None:
    return watts / rate if rate > 0 else None
