"""NVML samples of one device, ready for the findings about heat, power, clocks and errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.view import RunView, once_per_view

Array = npt.NDArray[Any]

BUSY_PCT = 50.0
ENOUGH_SAMPLES = 20
"""Busy samples, at two a second ten seconds."""

# ---- bits of nvmlClocksEventReasons (nvml.h)
GPU_IDLE = 0x1
APPLICATION_CLOCKS = 0x2
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
DISPLAY_CLOCKS = 0x100
THERMAL = SW_THERMAL | HW_THERMAL

REASON_NAMES = {
    GPU_IDLE: "idle",
    APPLICATION_CLOCKS: "application clocks setting",
    SW_POWER_CAP: "software power cap",
    HW_SLOWDOWN: "hardware slowdown",
    SYNC_BOOST: "sync boost",
    SW_THERMAL: "software thermal slowdown",
    HW_THERMAL: "hardware thermal slowdown",
    HW_POWER_BRAKE: "hardware power brake",
    DISPLAY_CLOCKS: "display clocks setting",
}


def reason_names(bits: int) -> str:
    """The reasons in a bit mask, in words."""
    return ", ".join(name for bit, name in REASON_NAMES.items() if bits & bit) or "none"


@dataclass(frozen=True)
class SampledDevice:
    """One device of the run over the window."""

    host: str
    index: int
    name: str
    rank: int | None
    """The rank that trains on it; None where that is not known for certain."""
    rows: Array
    """``layout.GPU_FIELDS``, in time order."""
    power_default_w: float = float("nan")
    """The limit that the board comes with; NaN: not told."""

    @property
    def label(self) -> str:
        """``GPU 3`` or ``GPU 3 of node-a``."""
        return f"GPU {self.index}" + (f" of {self.host}" if self.host else "")

    @cached_property
    def busy(self) -> Array:
        """Samples in which the device was over 50 % utilised."""
        return self.rows[self.rows["util_pct"] > BUSY_PCT]

    def told(self, rows: Array) -> Array:
        """Those of the samples whose event reasons the driver told."""
        return rows[rows["clock_event_reasons"] >= 0]

    def share(self, bits: int) -> float:
        """Share of the busy samples with one of these event reasons; NaN for too few of them."""
        rows = self.told(self.busy)
        if len(rows) >= ENOUGH_SAMPLES:
            return float(((rows["clock_event_reasons"] & bits) != 0).mean())
        return float("nan")

    def clock_drop(self, bits: int) -> float:
        """How far the SM clock is lower while one of these reasons holds than at its reference, 0
        to 1; NaN: not told.

        The reference is the clock of the busy samples without these reasons, else the device's
        maximum.
        """
        rows = self.told(self.busy)
        rows = rows[np.isfinite(rows["sm_clock_mhz"]) & (rows["sm_clock_mhz"] > 0)]
        with_it = (rows["clock_event_reasons"] & bits) != 0
        if not with_it.any():
            return float("nan")
        free = rows["sm_clock_mhz"][~with_it]
        if len(free) >= ENOUGH_SAMPLES:
            reference = float(np.median(free))
        else:
            reference = self.known("sm_clock_max_mhz")
        if reference > 0:
            return 1 - float(np.median(rows["sm_clock_mhz"][with_it])) / reference
        return float("nan")

    def known(self, column: str, rows: Array | None = None) -> float:
        """Median of a column's told values; NaN for none."""
        values = (self.rows if rows is None else rows)[column]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) else float("nan")

    def grown(self, column: str) -> int:
        """Growth of a counter over the window; 0: not told. One that was reset starts anew."""
        values = self.rows[column]
        values = values[values >= 0]
        if len(values) > 1:
            return int(np.maximum(np.diff(values), 0).sum())
        return 0

    @property
    def seconds(self) -> float:
        """Time between the first and the last sample."""
        if len(self.rows) > 1:
            return float(self.rows["t_ns"][-1] - self.rows["t_ns"][0]) / 1e9
        return 0.0


@once_per_view
def devices(view: RunView) -> list[SampledDevice]:
    """Devices of the run with samples in the window, in the order of host and index."""
    sampled = []
    several = len(view.record.hosts) > 1
    for host in view.record.hosts.values():
        rows = np.asarray(host.gpu.rows[-50_000:])
        rows = rows[rows["t_ns"] >= view.from_ns]
        infos = {info.index: info for info in host.state.gpus}
        for index in np.unique(rows["index"]):
            info = infos.get(int(index))
            if info is None or info.ours:
                rows_of_gpu = rows[rows["index"] == index]
                name = info.name if info else ""
                rank = _rank_of(view, host.name, info.uuid if info else "")
                default = info.power_limit_default_w if info else None
                watts = float(default) if default else float("nan")
                sampled.append(
                    SampledDevice(
                        host.name if several else "", int(index), name, rank, rows_of_gpu, watts
                    )
                )
    return sampled


def _rank_of(view: RunView, host: str, uuid: str) -> int | None:
    """The rank that says it trains on this device, by the device's UUID."""
    on_it = []
    for rank, hello in view.hellos.items():
        rank_uuid = str(hello.get("device_uuid") or "").removeprefix("GPU-")
        if rank_uuid and rank_uuid == uuid.removeprefix("GPU-") and view.host_of(rank) == host:
            on_it.append(rank)
    return on_it[0] if len(on_it) == 1 else None
