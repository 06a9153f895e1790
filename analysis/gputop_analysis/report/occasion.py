"""When and where a run took place."""

from __future__ import annotations

import time
from collections import Counter

from gputop_analysis.report.build import Report
from gputop_analysis.text import counted


def occasion(report: Report) -> str:
    """``2026-11-21 14:02 UTC, node1, 8x NVIDIA H100``: start, machine and devices."""
    summary = report.summary
    parts = []
    if summary.started_ns > 0:
        parts.append(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(summary.started_ns / 1e9)))
    hosts = sorted(report.record.hosts)
    if len(hosts) == 1:
        parts += hosts
    elif hosts:
        parts.append(counted(len(hosts), "host"))
    gpus = Counter(gpu.name for gpu in summary.gpus if gpu.ours and gpu.name)
    added = " (added)" if summary.gpus_added else ""
    parts += [f"{count}x {name}{added}" for name, count in gpus.items()]
    if not gpus and summary.hosts:
        parts.append(counted(sum(host.cpu_count for host in summary.hosts), "CPU core"))
    return ", ".join(parts)
