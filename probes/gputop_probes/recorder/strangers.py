"""Processes that seem to train and never said hello: names them and the likely reason."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import gputop_agent
from gputop_agent import wire
from gputop_probes import procfs
from gputop_probes.recorder.journal import Journal
from gputop_probes.samplers.tree import ProcessTree

_FIRST_LOOK_S = 10.0
_BUSY = (0.5, 30.0)
"""Share of a core, and for how many seconds: counts as training without other signs."""
_BUSY_WITH_REASON = (0.2, 5.0)
"""The same where it is plain why the guest is not there."""
_INJECT_DIR = str(Path(gputop_agent.__file__).parent / "inject")
_ISOLATING_FLAG = re.compile(r"-[a-zA-Z]*[EIS][a-zA-Z]*$")
_FLAGS_WITH_VALUE = ("-c", "-m", "-W", "-X")


class StrangerWatch:
    """Called every second or so, from the sampler's thread."""

    def __init__(
        self,
        journal: Journal,
        tree: ProcessTree,
        known_pids: Callable[[], set[int]],
        emit: Callable[[str, dict], None],
    ):
        self._host = journal.state["host"]
        self._tree = tree
        self._known = known_pids
        self._emit = emit
        self._started = time.monotonic()
        self._busy_since: dict[tuple[int, float], float] = {}
        self._before: dict[int, tuple[float, int]] = {}
        self._told: set[int] = set()
        self._silent: dict[int, str] = {}

    def check(self) -> None:
        """Look for busy Python processes with torch that are no rank and no child of one."""
        now_s, run_pids = time.monotonic(), self._known()
        if not run_pids:
            self._note_silent()
        if now_s - self._started < _FIRST_LOOK_S:
            return
        for pid, stat in list(self._tree.stats.items()):
            if (
                pid in run_pids
                or pid in self._told
                or run_pids.intersection(self._tree.ancestors(pid))
            ):
                continue
            share = self._cpu_share(pid, stat.cpu_ticks, now_s)
            certain = self._lasts(pid, share, now_s, *_BUSY)
            if (self._lasts(pid, share, now_s, *_BUSY_WITH_REASON) or certain) and _runs_torch(pid):
                self._judge(pid, certain)

    def finish(self) -> None:
        """The run is over: without any rank, tell of processes that could have been one."""
        if not self._known():
            for pid, reason in self._silent.items():
                self._tell(pid, reason)

    def _note_silent(self) -> None:
        for pid in [pid for pid in self._tree.stats if pid not in self._silent]:
            if not any(above in self._silent for above in self._tree.ancestors(pid)):
                reason = self._reason(pid)
                if reason and _runs_torch(pid):
                    self._silent[pid] = reason

    def _reason(self, pid: int) -> str:
        return why_silent(self._tree.members[pid].command_line, procfs.environment(pid))

    def _tell(self, pid: int, reason: str) -> None:
        if pid not in self._told:
            self._told.add(pid)
            self._emit("no_agent", {"pid": pid, "host": self._host, "reason": reason})

    def _judge(self, pid: int, certain: bool) -> None:
        reason = self._reason(pid)
        if reason or certain:
            self._tell(pid, reason or "unknown")

    def _cpu_share(self, pid: int, cpu_ticks: int, now_s: float) -> float:
        """Cores used since the last look."""
        before_s, before_ticks = self._before.get(pid, (now_s, cpu_ticks))
        self._before[pid] = (now_s, cpu_ticks)
        if now_s > before_s:
            return (cpu_ticks - before_ticks) / procfs.TICKS_PER_S / (now_s - before_s)
        return 0.0

    def _lasts(self, pid: int, share: float, now_s: float, limit: float, seconds: float) -> bool:
        """Whether the share has been above a limit for so long without a break."""
        since = self._busy_since.setdefault((pid, limit), now_s)
        if share <= limit:
            since = self._busy_since[pid, limit] = now_s
        return now_s - since >= seconds


def why_silent(command_line: list[str], environment: dict[str, str] | None) -> str:
    """Why a Python process did not load the guest; empty when nothing speaks against it."""
    flag = _isolating_flag(command_line)
    if flag:
        return f"python was started with {flag}, which ignores PYTHONPATH"
    if environment is None:
        return "its environment cannot be read (another user?)"
    if environment.get(wire.ENV_DISABLE) == "1":
        return f"{wire.ENV_DISABLE}=1 is set"
    if _INJECT_DIR not in environment.get("PYTHONPATH", "").split(os.pathsep):
        return "PYTHONPATH was overwritten or the environment was cleared"
    if wire.ENV_SOCKET in environment:
        return ""
    return "the environment was cleared"


def _isolating_flag(command_line: list[str]) -> str:
    """The first of the options ``-E``, ``-I`` and ``-S``; those after a script are its own."""
    words = iter(command_line[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "-c", "-m"):
            return ""
        if word in _FLAGS_WITH_VALUE:
            next(words, None)
        elif _ISOLATING_FLAG.match(word):
            return word
    return ""


def _runs_torch(pid: int) -> bool:
    raw = procfs.read_bytes(f"/proc/{pid}/maps") or b""
    return b"libtorch" in raw
