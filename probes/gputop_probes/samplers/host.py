"""One HOST record a second: processors, memory, pressure, disks, network, shared memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gputop_probes import procfs
from gputop_probes.record import layout
from gputop_probes.samplers.cgroup import Cgroup

_SECTOR_BYTES = 512
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""Virtual devices; the disks under them are counted."""


class HostSampler:
    """Samples this machine as the run sees it."""

    def __init__(
        self, cgroup: Cgroup, cpu_count: int, now_ns: Callable[[], int], *, logs: Sequence[Path]
    ):
        """
        Args:
            cgroup: of the command.
            cpu_count: cores that the run may use.
            now_ns: the time, ns since the epoch.
            logs: the files of the command's output and of its stderr.
        """
        self._cgroup = cgroup
        self._logs = logs
        self._cpu_count = cpu_count
        self._now_ns = now_ns
        self._cpu_before = _cpu_times()

    def sample(self, tree_rss_bytes: int, tree_pss_bytes: int, process_count: int) -> bytes:
        """One packed HOST record.

        Args:
            tree_rss_bytes: resident memory of the run's processes; -1: not known.
            tree_pss_bytes: the same with shared pages split; -1: not known.
            process_count: processes of the run.
        """
        total, available, swap = _memory()
        disk_read, disk_written = _disks()
        received, sent = _network()
        shm_used, shm_total = _shared_memory()
        limits = self._cgroup.read()
        return layout.HOST.pack(
            self._now_ns(),
            total,
            available,
            swap,
            limits.memory_bytes,
            limits.memory_max_bytes,
            limits.oom_kill_total,
            limits.throttled_us_total,
            tree_rss_bytes,
            tree_pss_bytes,
            disk_read,
            disk_written,
            received,
            sent,
            shm_used,
            shm_total,
            *(_length(log) for log in self._logs),
            self._cpu_pct(),
            os.getloadavg()[0],
            _pressure("cpu"),
            _pressure("io"),
            _pressure("memory"),
            limits.cpu_limit_cores,
            self._cpu_count,
            process_count,
        )

    def _cpu_pct(self) -> float:
        before, self._cpu_before = self._cpu_before, _cpu_times()
        total = self._cpu_before[1] - before[1]
        if total > 0:
            return 100.0 * (self._cpu_before[0] - before[0]) / total
        return float("nan")


def _cpu_times() -> tuple[int, int]:
    """Busy and all ticks of the machine since it booted."""
    line = (procfs.read_bytes("/proc/stat") or b"").partition(b"\n")[0].split()[1:9]
    ticks = [int(part) for part in line]
    if len(ticks) >= 5:
        return (sum(ticks) - sum(ticks[3:5]), sum(ticks))
    return (0, 0)


def _memory() -> tuple[int, int, int]:
    """Total, available and swapped-out bytes."""
    sizes = {}
    for line in (procfs.read_bytes("/proc/meminfo") or b"").splitlines():
        name, _, value = line.partition(b":")
        sizes[name] = int(value.split()[0]) * 1024 if value.split() else 0
    swap = sizes.get(b"SwapTotal", 0) - sizes.get(b"SwapFree", 0)
    return sizes.get(b"MemTotal", -1), sizes.get(b"MemAvailable", -1), swap


def _pressure(resource: str) -> float:
    """Share of time in which some task waited for the resource, over 10 s; NaN: not told."""
    raw = procfs.read_bytes(f"/proc/pressure/{resource}") or b""
    start = raw.find(b"some avg10=")
    if start >= 0:
        return float(raw[start + 11 :].split(None, 1)[0])
    return float("nan")


def _disks() -> tuple[int, int]:
    """Bytes read from and written to all disks since the machine booted."""
    try:
        names = set()
        for name in os.listdir("/sys/block"):
            if not name.startswith(_NOT_DISKS):
                names.add(name.encode())
    except OSError:
        return -1, -1
    read = written = 0
    for line in (procfs.read_bytes("/proc/diskstats") or b"").splitlines():
        parts = line.split()
        if len(parts) > 9 and parts[2] in names:
            read += int(parts[5])
            written += int(parts[9])
    return read * _SECTOR_BYTES, written * _SECTOR_BYTES


def _network() -> tuple[int, int]:
    """Bytes received and sent on all interfaces but the loopback."""
    received = sent = 0
    for line in (procfs.read_bytes("/proc/net/dev") or b"").splitlines()[2:]:
        name, _, counters = line.partition(b":")
        parts = counters.split()
        if name.strip() != b"lo" and len(parts) > 8:
            received += int(parts[0])
            sent += int(parts[8])
    return received, sent


def _length(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return -1


def _shared_memory() -> tuple[int, int]:
    try:
        space = os.statvfs("/dev/shm")
    except OSError:
        return -1, -1
    return (space.f_blocks - space.f_bfree) * space.f_frsize, space.f_blocks * space.f_frsize
