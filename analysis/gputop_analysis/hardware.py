"""Devices and hosts, from the samplers' tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.model import GpuSummary, HostSummary
from gputop_analysis.series import tail_seconds
from gputop_analysis.units import GIB
from gputop_probes.record.layout import PROCESS_RANK
from gputop_probes.record.reader import HostFiles, RunRecord

Array = npt.NDArray[Any]

SAMPLES_AT_MOST = 20_000


def gpu_summaries(record: RunRecord, from_ns: int = 0) -> tuple[GpuSummary, ...]:
    """Every device that was sampled since ``from_ns``, those of the run first."""
    summaries = [gpu for host in record.hosts.values() for gpu in _gpus_of(host, from_ns)]
    return tuple(sorted(summaries, key=lambda gpu: (not gpu.ours, gpu.host, gpu.index)))


def _gpus_of(host: HostFiles, from_ns: int) -> list[GpuSummary]:
    rows = np.asarray(host.gpu.rows[-SAMPLES_AT_MOST:])
    rows = rows[rows["t_ns"] >= from_ns]
    infos = {info.index: info for info in host.state.gpus}
    summaries = []
    for index in np.unique(rows["index"]):
        rows_of_gpu, info = rows[rows["index"] == index], infos.get(int(index))
        last = rows_of_gpu[-1]
        summaries.append(
            GpuSummary(
                index=int(index),
                name=info.name if info else "",
                host=host.name,
                memory_total_gib=gib(last["memory_total_bytes"]),
                memory_used_gib=gib(last["memory_used_bytes"]),
                peak_used_gib=gib(rows_of_gpu["memory_used_bytes"].max()),
                util_mean_pct=known_mean(rows_of_gpu["util_pct"]),
                util_pct=float(last["util_pct"]),
                power_mean_w=known_mean(rows_of_gpu["power_w"]),
                power_w=float(last["power_w"]),
                power_limit_w=float(last["power_limit_w"]),
                temperature_c=float(last["temperature_c"]),
                sm_clock_mhz=float(last["sm_clock_mhz"]),
                sm_clock_max_mhz=float(last["sm_clock_max_mhz"]),
                ours=info.ours if info else True,
                added=info.added if info else False,
            )
        )
    return summaries


def host_summaries(record: RunRecord) -> tuple[HostSummary, ...]:
    """Each host as its newest samples show it."""
    return tuple(_host_of(host) for host in record.hosts.values() if len(host.host.rows))


def _host_of(host: HostFiles) -> HostSummary:
    rows = tail_seconds(host.host.rows, 5.0, "t_ns", at_most=64)
    first, last = rows[0], rows[-1]
    seconds = max((int(last["t_ns"]) - int(first["t_ns"])) / 1e9, 1e-9)
    total = gib(last["memory_total_bytes"])
    return HostSummary(
        host=host.name,
        cpu_pct=float(last["cpu_pct"]),
        cpu_count=int(last["cpu_count"]),
        memory_used_gib=total - gib(last["memory_available_bytes"]),
        memory_total_gib=total,
        tree_rss_gib=gib(last["tree_rss_bytes"]),
        run_wait_share=_run_wait_share(host),
        disk_read_mb_s=_rate_mb_s(first, last, "disk_read_bytes_total", seconds),
        disk_write_mb_s=_rate_mb_s(first, last, "disk_write_bytes_total", seconds),
    )


def _run_wait_share(host: HostFiles) -> float:
    rows = tail_seconds(host.process.rows, 10.0, "t_ns", at_most=2000)
    rows = rows[(rows["kind"] == PROCESS_RANK) & (rows["run_wait_ns_total"] >= 0)]
    shares = [run_wait_share(rows[rows["pid"] == pid]) for pid in np.unique(rows["pid"])]
    finite = [share for share in shares if np.isfinite(share)]
    return max(finite) if finite else float("nan")


def run_wait_share(rows: Array) -> float:
    """Share of wall time of a training thread in the run queue; NaN below two samples."""
    if len(rows) < 2 or rows["t_ns"][-1] <= rows["t_ns"][0]:
        return float("nan")
    waited = rows["run_wait_ns_total"][-1] - rows["run_wait_ns_total"][0]
    return float(np.clip(waited / (rows["t_ns"][-1] - rows["t_ns"][0]), 0, 1))


def _rate_mb_s(first: Any, last: Any, column: str, seconds: float) -> float:
    if first[column] < 0 or seconds < 0.1:
        return float("nan")
    return float(last[column] - first[column]) / 1e6 / seconds


def known_mean(values: Array) -> float:
    """Mean of the finite values; NaN for none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def gib(size: int) -> float:
    """Bytes in GiB; -1, not measured, becomes NaN."""
    return float(size) / GIB if size >= 0 else float("nan")
