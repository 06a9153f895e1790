"""Small readers of ``/proc`` that answer None when a process is gone or not ours to look at."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NS_PER_TICK = 1_000_000_000 // TICKS_PER_S
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """The part of ``/proc/PID/stat`` that is used here; times in clock ticks."""

    name: str
    state: str
    ppid: int
    pgid: int
    minor_faults: int
    major_faults: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    rss_bytes: int


def read_bytes(path: str) -> bytes | None:
    """The content of a small file, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        with suppress(OSError):
            os.close(descriptor)


def stat(pid: int) -> Stat | None:
    """Parse ``/proc/PID/stat``; the name may hold spaces and brackets."""
    raw = read_bytes(f"/proc/{pid}/stat")
    if not raw:
        return None
    head, _, tail = raw.rpartition(b")")
    f = tail.split()
    if len(f) < 22:
        return None
    return Stat(
        name=head.partition(b"(")[2].decode(errors="replace"),
        state=f[0].decode(),
        ppid=int(f[1]),
        pgid=int(f[2]),
        minor_faults=int(f[7]),
        major_faults=int(f[9]),
        cpu_ticks=int(f[11]) + int(f[12]),
        threads=int(f[17]),
        start_ticks=int(f[19]),
        rss_bytes=int(f[21]) * PAGE_BYTES,
    )


def zombie_wait_status(pid: int) -> int | None:
    """How a process ended that nobody waited for; None if it is none, or hidden."""
    head, _, tail = (read_bytes(f"/proc/{pid}/stat") or b"").rpartition(b")")
    fields = tail.split()
    if head and len(fields) > 49 and fields[0] == b"Z":
        return int(fields[49])
    return None


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal; False where nobody can tell."""
    return _in_signal_set(pid, b"SigIgn:", number)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; False where nobody can tell."""
    return _in_signal_set(pid, b"SigCgt:", number)


def _in_signal_set(pid: int, field: bytes, number: int) -> bool:
    for line in (read_bytes(f"/proc/{pid}/status") or b"").splitlines():
        if line.startswith(field):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def alive(pid: int, start_ticks: int | None = None) -> bool:
    """Whether the process runs (a zombie does not); with ``start_ticks``, no later namesake."""
    stat_ = stat(pid)
    return (
        stat_ is not None
        and stat_.state not in "ZX"
        and start_ticks in (None, 0, stat_.start_ticks)
    )


def environment(pid: int) -> dict[str, str] | None:
    """The environment a process was started with; None if it cannot be read."""
    raw = read_bytes(f"/proc/{pid}/environ")
    if raw is None:
        return None
    pairs = (
        item.partition("=")
        for item in raw.decode(errors="surrogateescape").split("\0")
        if "=" in item
    )
    return {name: value for name, _, value in pairs}


def command_line(pid: int) -> list[str]:
    """Arguments of a process; empty if it is gone."""
    raw = read_bytes(f"/proc/{pid}/cmdline") or b""
    return raw.decode(errors="replace").split("\0")[:-1]


def pids() -> list[int]:
    """All process ids."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def out_of_memory_kills() -> int:
    """Processes that the kernel killed for lack of memory since boot; -1: not counted."""
    for line in (read_bytes("/proc/vmstat") or b"").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return -1


def boot_id() -> str:
    """Tells this boot of the machine from every other."""
    return (read_bytes("/proc/sys/kernel/random/boot_id") or b"").decode().strip()
