"""The processes of a run, found without psutil: by parent, and by the mark that the launcher left
in the environment.

Only new process ids are looked at, so a tick costs little on a machine with thousands of processes.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from gputop_agent import wire
from gputop_probes import procfs

_FORGET_STRANGERS_S = 30.0
"""Process ids are reused, so now and then even known strangers are looked at again."""


class Member(NamedTuple):
    """A process of the run."""

    pid: int
    start_ticks: int
    command_line: list[str]


class ProcessTree:
    """Follows the processes that belong to a command."""

    def __init__(self, root: int, run_id: str):
        self.members: dict[int, Member] = {}
        self.stats: dict[int, procfs.Stat] = {}
        """Statistics of living members by process id, as of the last refresh."""
        self._mark = f"{wire.ENV_RUN_ID}={run_id}\0".encode()
        self.root = root
        self._strangers: set[int] = set()
        self._forget_at = time.monotonic() + _FORGET_STRANGERS_S

    def refresh(self) -> None:
        """Look for processes that came and went."""
        now_s = time.monotonic()
        if now_s >= self._forget_at:
            self._strangers.clear()
            self._forget_at = now_s + _FORGET_STRANGERS_S
        present = set(procfs.pids())
        self._strangers &= present
        self.stats = self._restat(present)
        self.members = {pid: self.members[pid] for pid in self.stats}
        for pid in sorted(present - self._strangers - self.members.keys()):
            self._consider(pid)

    def ancestors(self, pid: int) -> list[int]:
        """Members above a member, nearest first."""
        pids: list[int] = []
        while pid in self.stats and len(pids) <= len(self.stats):
            pid = self.stats[pid].ppid
            if pid in self.stats:
                pids.append(pid)
        return pids

    def _restat(self, present: set[int]) -> dict[int, procfs.Stat]:
        living = {}
        for pid, member in self.members.items():
            stat = None
            if pid in present:
                stat = procfs.stat(pid)
            if (
                stat is not None
                and stat.start_ticks == member.start_ticks
                and stat.state not in "ZX"
            ):
                living[pid] = stat
        return living

    def _consider(self, pid: int) -> None:
        stat = procfs.stat(pid)
        if stat is None or stat.state in "ZX":
            return
        if pid == self.root or stat.ppid in self.members or self._is_marked(pid):
            self.members[pid] = Member(pid, stat.start_ticks, procfs.command_line(pid))
            self.stats[pid] = stat
        else:
            self._strangers.add(pid)

    def _is_marked(self, pid: int) -> bool:
        raw = procfs.read_bytes(f"/proc/{pid}/environ")
        return raw is not None and self._mark in raw
