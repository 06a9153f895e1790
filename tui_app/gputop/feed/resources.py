"""What the run used of its machines over its whole length: tracks on one time axis, thinned."""

from __future__ import annotations

from typing import Any

import numpy as np

from gputop.feed.snapshot import Resources, Track
from gputop_analysis.units import GIB
from gputop_probes.record.reader import HostFiles, RunRecord, Table

POINTS = 300
MAX_HOSTS = 8
"""So many hosts stand for all."""

Series = dict[str, tuple[Any, Any]]
"""Times in ns and values, by name."""


def resources(record: RunRecord) -> Resources:
    """Tracks of the GPUs, then of the hosts: means of shares, the fullest and the hottest GPU, sums
    of power and rates.
    """
    hosts = [host for host in record.hosts.values() if len(host.host.rows) > 1][:MAX_HOSTS]
    if not hosts:
        return Resources()
    start = min(int(host.host.rows[0]["t_ns"]) for host in hosts)
    end = max(int(host.host.rows[-1]["t_ns"]) for host in hosts)
    longest = max(len(host.host.rows) for host in hosts)
    grid = np.linspace(start, end, min(POINTS, max(longest, 2)))
    series = [_gpu_series(host) | _host_series(host) for host in hosts]
    several = sum(len(host.state.gpus) for host in hosts) > 1
    tracks = []
    for name, unit, style, how in _TRACKS:
        columns = [
            np.interp(grid, *host_series[name]) for host_series in series if name in host_series
        ]
        if columns and np.isfinite(columns).any():
            values = _TOGETHER[how](columns, axis=0)
            shown = _OF_SEVERAL.get(name, name) if several else name
            tracks.append(Track(shown, unit, tuple(values.tolist()), _top(name, hosts), style))
    seconds = (grid - start) / 1e9
    return Resources(tuple(seconds.tolist()), tuple(tracks))


_TRACKS = (
    ("GPU", "%", "good", "mean"),
    ("memory used", "GiB", "allocated", "max"),
    ("power", "W", "high", "sum"),
    ("hottest", "°C", "medium", "max"),
    ("CPU", "%", "accent", "mean"),
    ("RAM", "GiB", "optimizer", "mean"),
    ("disk", "MB/s", "data", "sum"),
    ("net", "MB/s", "comm", "sum"),
)
_TOGETHER: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "max": np.max}
_OF_SEVERAL = {
    "GPU": "GPUs, mean",
    "memory used": "fullest GPU",
    "power": "power, sum",
    "hottest": "hottest GPU",
}
"""What a track is called where it stands for several GPUs."""


def _top(name: str, hosts: list[HostFiles]) -> float:
    """Upper end of a known scale: percent, or what a host or a GPU has; NaN: unknown."""
    if name in ("GPU", "CPU"):
        return 100.0
    if name == "RAM":
        sizes = [float(h.host.rows[-1]["memory_total_bytes"]) / GIB for h in hosts]
        return sum(sizes) / len(sizes)
    if name == "memory used":
        sizes = [
            float(h.gpu.rows[-1]["memory_total_bytes"]) / GIB for h in hosts if len(h.gpu.rows)
        ]
        return max(sizes, default=float("nan"))
    return float("nan")


def _picked(rows: Table, count: int = POINTS) -> Any:
    index = np.unique(np.linspace(0, len(rows) - 1, count).astype(np.int64))
    return rows[index]


def _host_series(host: HostFiles) -> Series:
    rows = _picked(host.host.rows)
    times = rows["t_ns"].astype(np.float64)
    used = rows["memory_total_bytes"] - rows["memory_available_bytes"]
    valid = (rows["memory_total_bytes"] > 0) & (rows["memory_available_bytes"] >= 0)
    series: Series = {
        "CPU": (times, rows["cpu_pct"]),
        "RAM": (times, np.where(valid, used / GIB, np.nan)),
    }
    for name in ("disk", "net"):
        rate = _rate(rows, times, name)
        if rate is not None:
            series[name] = times[1:], rate
    return series


_COUNTERS = {
    "disk": ("disk_read_bytes_total", "disk_write_bytes_total"),
    "net": ("net_rx_bytes_total", "net_tx_bytes_total"),
}


def _rate(rows: Any, times: Any, name: str) -> Any:
    """MB/s of both directions; None where they were not read."""
    columns = [rows[column].astype(np.float64) for column in _COUNTERS[name]]
    if len(rows) < 2 or any((column < 0).any() for column in columns) or not columns[0].any():
        return None
    seconds = np.maximum(np.diff(times) / 1e9, 1e-3)
    return np.maximum(np.diff(sum(columns)), 0.0) / 1e6 / seconds


def _gpu_series(host: HostFiles) -> Series:
    """Mean utilisation, fullest memory, summed power, hottest device at ticks picked evenly."""
    rows = host.gpu.rows
    devices = len(host.state.gpus) or 1
    if len(rows) < 2 * devices:
        return {}
    starts = np.unique(np.linspace(0, len(rows) - devices, POINTS).astype(np.int64))
    ticks = rows[(starts[:, None] + np.arange(devices)).ravel()].reshape(len(starts), devices)
    times = ticks["t_ns"][:, 0].astype(np.float64)
    return {
        "GPU": (times, ticks["util_pct"].mean(axis=1)),
        "memory used": (times, ticks["memory_used_bytes"].max(axis=1) / GIB),
        "power": (times, ticks["power_w"].sum(axis=1)),
        "hottest": (times, ticks["temperature_c"].max(axis=1)),
    }
