"""What the sampler saw of the device that a rank trains on, while it trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.findings.shares import on_device
from gputop_analysis.model import Input
from gputop_analysis.view import Array, RunView

ENOUGH_SAMPLES = 5


@dataclass(frozen=True)
class Samples:
    """``gpu.bin`` rows of one rank's device from its warm-up to its last step."""

    rank: int
    gpu: int
    rows: Array

    def mean(self, column: str) -> float | None:
        """Mean of what was measured; None for fewer than five samples."""
        values = self.rows[column]
        if values.dtype.kind == "f":
            valid = values[np.isfinite(values)]
        else:
            valid = values[values >= 0]
        return float(valid.mean()) if len(valid) >= ENOUGH_SAMPLES else None

    def busy_share(self) -> tuple[float | None, str]:
        """Part of the time in which the GPU computes, 0 to 1, and the column that says so.

        The driver tells in how much of the time a kernel ran. The counter of active SMs is a mean
        over all of them: below it lies what kernels leave unused, too (81 % on an H200 that never
        idled).
        """
        shares = []
        for column in ("util_pct", "sm_active_pct"):
            mean_pct = self.mean(column)
            if mean_pct is not None:
                shares.append((mean_pct / 100, column))
        return max(shares, default=(None, ""))

    def filled_share(self) -> float:
        """Part of the SMs that kernels use while one runs, 0 to 1; 1 where it is not told."""
        active_pct, util_pct = self.mean("sm_active_pct"), self.mean("util_pct")
        if active_pct is None or not util_pct:
            return 1.0
        return active_pct / util_pct

    def free_memory_share(self) -> float | None:
        """Of the device's memory, what was free at the peak; None where it is not told."""
        used, total = self.rows["memory_used_bytes"], self.rows["memory_total_bytes"]
        valid = (used >= 0) & (total > 0)
        if np.count_nonzero(valid) >= ENOUGH_SAMPLES:
            return float(1 - (used[valid] / total[valid]).max())
        return None

    def input(self, what: str, column: str, unit: str = "%") -> Input:
        """The mean of a column as an input of a proof."""
        source = (
            f"gpu.{column}, GPU {self.gpu}, {len(self.rows)} samples between the warm-up "
            "and the last step"
        )
        return Input(
            what, value if (value := self.mean(column)) is not None else "not told", unit, source
        )


def samples(view: RunView, rank: int) -> Samples | None:
    """None where the rank trains on no device, or where that was not sampled."""
    key = f"samples of rank {rank}"
    if key not in view.known:
        view.known[key] = _samples(view, rank)
    return view.known[key]


def _samples(view: RunView, rank: int) -> Samples | None:
    index = gpu_index(view, rank)
    host, series = view.record.hosts.get(view.host_of(rank)), view.per_rank[rank]
    if index is None or host is None or not series.steady.any():
        return None
    ends = series.steady_ends_ns
    rows = host.gpu.rows
    first, last = np.searchsorted(rows["t_ns"], (ends[0], ends[-1]))
    rows = np.asarray(rows[max(first, last - 20_000) : last])
    rows = rows[rows["index"] == index]
    if len(rows) >= ENOUGH_SAMPLES:
        return Samples(rank, index, rows)
    return None


def gpu_index(view: RunView, rank: int) -> int | None:
    """NVML's index of the device a rank trains on: by UUID, else the only one in use."""
    hello, host = view.hello(rank), view.record.hosts.get(view.host_of(rank))
    if host is None or not on_device(view, rank):
        return None
    uuid = hello.get("device_uuid")
    if uuid:
        for gpu in host.state.gpus:
            if gpu.uuid == uuid:
                return gpu.index
    ours = [gpu.index for gpu in host.state.gpus if gpu.ours]
    return ours[0] if len(ours) == 1 else None
