"""Limits and throttling of the control group that the command runs in, version 1 or 2."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from gputop_probes import procfs

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""


class Limits(NamedTuple):
    """What the group allows and what it has cost so far; -1 or NaN: not told, or no limit."""

    memory_bytes: int
    memory_max_bytes: int
    oom_kill_total: int
    throttled_us_total: int
    cpu_limit_cores: float


class Cgroup:
    """The group of one process; where it was made from several nested groups, the tightest limit counts."""

    def __init__(self, pid: int, root: Path = Path("/sys/fs/cgroup")):
        paths = _group_paths(pid)
        unified = root if (root / "cgroup.controllers").exists() else root / "unified"
        self._v2 = _chain(unified, paths.get("", "/")) if _governs(unified) else []
        self._memory = _chain(root / "memory", paths.get("memory", "/"))
        self._cpu = _chain(root / "cpu", paths.get("cpu", "/"))

    def read(self) -> Limits:
        """Read the group's files."""
        return self._read_v2() if self._v2 else self._read_v1()

    def _read_v2(self) -> Limits:
        own = self._v2[0]
        maxima = [_integer(folder / "memory.max") for folder in self._v2]
        return Limits(
            memory_bytes=_integer(own / "memory.current"),
            memory_max_bytes=min((size for size in maxima if size >= 0), default=-1),
            oom_kill_total=_field(own / "memory.events", "oom_kill"),
            throttled_us_total=max(_field(folder / "cpu.stat", "throttled_usec") for folder in self._v2),
            cpu_limit_cores=_least(_cpu_max(folder / "cpu.max") for folder in self._v2),
        )

    def _read_v1(self) -> Limits:
        own = self._memory[0] if self._memory else Path("/nonexistent")
        maxima = [_integer(folder / "memory.limit_in_bytes") for folder in self._memory]
        throttled = max((_field(folder / "cpu.stat", "throttled_time") for folder in self._cpu), default=-1)
        return Limits(
            memory_bytes=_integer(own / "memory.usage_in_bytes"),
            memory_max_bytes=min((size for size in maxima if 0 <= size < _NO_LIMIT_BYTES), default=-1),
            oom_kill_total=_field(own / "memory.oom_control", "oom_kill"),
            throttled_us_total=throttled // 1000 if throttled >= 0 else -1,
            cpu_limit_cores=_least(_cfs_quota(folder) for folder in self._cpu),
        )


def _group_paths(pid: int) -> dict[str, str]:
    """Controller -> path of the process's group; the version 2 hierarchy has the empty name."""
    paths = {}
    for line in (procfs.read_bytes(f"/proc/{pid}/cgroup") or b"").decode(errors="replace").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _chain(mount: Path, path: str) -> list[Path]:
    """A group's directory and those above it. Inside a container the path may only exist outside: take the mount."""
    if not mount.is_dir():
        return []
    own = mount / path.lstrip("/")
    own = own if ".." not in path and own.is_dir() else mount
    return [own, *[folder for folder in own.parents if folder == mount or mount in folder.parents]]


def _governs(mount: Path) -> bool:
    """Whether version 2 holds memory or CPU; in a hybrid set-up it may hold others only."""
    controllers = (procfs.read_bytes(str(mount / "cgroup.controllers")) or b"").split()
    return b"memory" in controllers or b"cpu" in controllers


def _integer(path: Path) -> int:
    raw = (procfs.read_bytes(str(path)) or b"").strip()
    return int(raw) if raw.isdigit() else -1


def _field(path: Path, name: str) -> int:
    for line in (procfs.read_bytes(str(path)) or b"").decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return -1


def _cpu_max(path: Path) -> float:
    parts = (procfs.read_bytes(str(path)) or b"").split()
    return int(parts[0]) / int(parts[1]) if len(parts) == 2 and parts[0].isdigit() else math.nan


def _cfs_quota(folder: Path) -> float:
    quota, period = _integer(folder / "cpu.cfs_quota_us"), _integer(folder / "cpu.cfs_period_us")
    return quota / period if quota > 0 and period > 0 else math.nan


def _least(values) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)
