"""The processes of a run, found without psutil: by parent, and by the mark that the launcher left in the environment.

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
        """Of living members, as of the last refresh."""
        self._mark = f"{wire.ENV_RUN_ID}={run_id}\0".encode()
        self.root = root
        self._strangers: set[int] = set()
        self._forget_at = time.monotonic() + _FORGET_STRANGERS_S

    def refresh(self) -> None:
        """Look for processes that came and went."""
        now = time.monotonic()
        if now >= self._forget_at:
            self._strangers.clear()
            self._forget_at = now + _FORGET_STRANGERS_S
        present = set(procfs.pids())
        self._strangers &= present
        self.stats = self._restat(present)
        self.members = {pid: self.members[pid] for pid in self.stats}
        for pid in sorted(present - self._strangers - self.members.keys()):
            self._consider(pid)

    def ancestors(self, pid: int) -> list[int]:
        """Members above a member, nearest first."""
        found: list[int] = []
        while pid in self.stats and len(found) <= len(self.stats):
            pid = self.stats[pid].ppid
            if pid in self.stats:
                found.append(pid)
        return found

    def _restat(self, present: set[int]) -> dict[int, procfs.Stat]:
        living = {}
        for pid, member in self.members.items():
            found = procfs.stat(pid) if pid in present else None
            if found is not None and found.start_ticks == member.start_ticks and found.state not in "ZX":
                living[pid] = found
        return living

    def _consider(self, pid: int) -> None:
        found = procfs.stat(pid)
        if found is None or found.state in "ZX":
            return
        if pid == self.root or found.ppid in self.members or self._is_marked(pid):
            self.members[pid] = Member(pid, found.start_ticks, procfs.command_line(pid))
            self.stats[pid] = found
        else:
            self._strangers.add(pid)

    def _is_marked(self, pid: int) -> bool:
        raw = procfs.read_bytes(f"/proc/{pid}/environ")
        return raw is not None and self._mark in raw
