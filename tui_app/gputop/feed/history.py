"""The last samples of every device, host and rank, for the small charts in the table of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gputop.feed.snapshot import History
from gputop_analysis.units import GIB
from gputop_probes.record.layout import PROCESS_RANK
from gputop_probes.record.reader import RunRecord

SAMPLES = 60
MAX_RANKS = 32
"""Processes of more ranks are not read: a heat map has no place for their charts."""

Series = dict[str, tuple[float, ...]]


def history(record: RunRecord) -> History:
    """Utilisation and memory per GPU, CPU per host and, of few ranks, per rank."""
    series: Series = {}
    few = len(record.ranks()) <= MAX_RANKS
    for name, host in record.hosts.items():
        rows = host.host.rows
        if len(rows):
            series[f"cpu {name}"] = tuple(rows["cpu_pct"][-SAMPLES:].tolist())
        gpu = host.gpu.rows[-SAMPLES * 16 :]
        for index in np.unique(gpu["index"]).tolist() if len(gpu) else []:
            its = gpu[gpu["index"] == index][-SAMPLES:]
            series[f"gpu {name} {index}"] = tuple(its["util_pct"].tolist())
            used = its["memory_used_bytes"] / GIB
            series[f"memory {name} {index}"] = tuple(used.tolist())
        if few:
            series |= _ranks(host.process.rows[-SAMPLES * 2 * MAX_RANKS :])
    return History(series)


def _ranks(rows: Any) -> Series:
    """Percent of one core that each rank's process used between two looks."""
    rows = rows[rows["kind"] == PROCESS_RANK] if len(rows) else rows
    series: Series = {}
    for rank in np.unique(rows["rank"]).tolist() if len(rows) else []:
        its = rows[rows["rank"] == rank][-SAMPLES - 1 :]
        seconds = np.diff(its["t_ns"]) / 1e9
        used = np.diff(its["cpu_ns_total"]) / 1e9
        same = (np.diff(its["pid"]) == 0) & (seconds > 0)
        share = 100 * used / np.where(same, seconds, np.nan)
        series[f"rank {rank}"] = tuple(share.tolist())
    return series
