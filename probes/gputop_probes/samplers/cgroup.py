"""Limits and throttling of the control group that the command runs in, version 1 or 2."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from gputop_probes import procfs

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""


class CgroupLimits(NamedTuple):
    """Limits of the group and their cost so far; -1 or NaN: no limit, or not told."""

    memory_bytes: int
    memory_max_bytes: int
    oom_kill_total: int
    throttled_us_total: int
    cpu_limit_cores: float


class Cgroup:
    """The group of one process; of several nested groups the tightest limit counts."""

    def __init__(self, pid: int, root: Path = Path("/sys/fs/cgroup")):
        paths = _group_paths(pid)
        if (root / "cgroup.controllers").exists():
            unified = root
        else:
            unified = root / "unified"
        self._v2 = []
        if _governs(unified):
            self._v2 = _chain(unified, paths.get("", "/"))
        self._memory = _chain(root / "memory", paths.get("memory", "/"))
        self._cpu = _chain(root / "cpu", paths.get("cpu", "/"))

    def read(self) -> CgroupLimits:
        """Read the group's files."""
        if self._v2:
            return self._read_v2()
        return self._read_v1()

    def _read_v2(self) -> CgroupLimits:
        own_group = self._v2[0]
        maxima = [_integer(folder / "memory.max") for folder in self._v2]
        return CgroupLimits(
            memory_bytes=_integer(own_group / "memory.current"),
            memory_max_bytes=min((size for size in maxima if size >= 0), default=-1),
            oom_kill_total=_field(own_group / "memory.events", "oom_kill"),
            throttled_us_total=max(
                _field(folder / "cpu.stat", "throttled_usec") for folder in self._v2
            ),
            cpu_limit_cores=_least(_cpu_max(folder / "cpu.max") for folder in self._v2),
        )

    def _read_v1(self) -> CgroupLimits:
        if self._memory:
            own_group = self._memory[0]
        else:
            own_group = Path("/nonexistent")
        maxima = []
        for folder in self._memory:
            maxima.append(_integer(folder / "memory.limit_in_bytes"))
        throttled = max(
            (_field(folder / "cpu.stat", "throttled_time") for folder in self._cpu), default=-1
        )
        return CgroupLimits(
            memory_bytes=_integer(own_group / "memory.usage_in_bytes"),
            memory_max_bytes=min(
                (size for size in maxima if 0 <= size < _NO_LIMIT_BYTES), default=-1
            ),
            oom_kill_total=_field(own_group / "memory.oom_control", "oom_kill"),
            throttled_us_total=throttled // 1000 if throttled >= 0 else -1,
            cpu_limit_cores=_least(_cfs_quota(folder) for folder in self._cpu),
        )


def _group_paths(pid: int) -> dict[str, str]:
    """Controller -> path of the process's group; the version 2 hierarchy has the empty name."""
    paths = {}
    for line in (
        (procfs.read_bytes(f"/proc/{pid}/cgroup") or b"").decode(errors="replace").splitlines()
    ):
        _, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _chain(mount: Path, path: str) -> list[Path]:
    """A group's directory and those above; the mount where a container does not have it."""
    if not mount.is_dir():
        return []
    own_group = mount / path.lstrip("/")
    if ".." not in path and own_group.is_dir():
        own_group = own_group
    else:
        own_group = mount
    return [
        own_group,
        *[folder for folder in own_group.parents if folder == mount or mount in folder.parents],
    ]


def _governs(mount: Path) -> bool:
    """Whether version 2 holds memory or CPU; in a hybrid set-up it may hold others only."""
    controllers = (procfs.read_bytes(str(mount / "cgroup.controllers")) or b"").split()
    return b"memory" in controllers or b"cpu" in controllers


def _integer(path: Path) -> int:
    raw = (procfs.read_bytes(str(path)) or b"").strip()
    if raw.isdigit():
        return int(raw)
    return -1


def _field(path: Path, name: str) -> int:
    for line in (procfs.read_bytes(str(path)) or b"").decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return -1


def _cpu_max(path: Path) -> float:
    parts = (procfs.read_bytes(str(path)) or b"").split()
    if len(parts) == 2 and parts[0].isdigit():
        return int(parts[0]) / int(parts[1])
    return math.nan


def _cfs_quota(folder: Path) -> float:
    quota, period = _integer(folder / "cpu.cfs_quota_us"), _integer(folder / "cpu.cfs_period_us")
    if quota > 0 and period > 0:
        return quota / period
    return math.nan


def _least(values) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)
