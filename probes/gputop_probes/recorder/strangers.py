"""Processes of the run that seem to train and never said hello: names them and the likely reason."""

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
_BUSY_SHARE = 0.5
_BUSY_S = 30.0
_BUSY_KNOWN_REASON_S = 5.0
_INJECT_DIR = str(Path(gputop_agent.__file__).parent / "inject")
_ISOLATING_FLAG = re.compile(r"-[a-zA-Z]*[EIS][a-zA-Z]*$")
_FLAGS_WITH_VALUE = ("-c", "-m", "-W", "-X")


class StrangerWatch:
    """Called every second or so, from the sampler's thread."""

    def __init__(
        self, journal: Journal, tree: ProcessTree, known_pids: Callable[[], set[int]], emit: Callable[[str, dict], None]
    ):
        self._host = journal.state["host"]
        self._tree = tree
        self._known = known_pids
        self._emit = emit
        self._started = time.monotonic()
        self._busy_since: dict[int, float] = {}
        self._before: dict[int, tuple[float, int]] = {}
        self._told: set[int] = set()

    def check(self) -> None:
        """Look for busy Python processes with torch that are no rank and no child of one."""
        now = time.monotonic()
        if now - self._started < _FIRST_LOOK_S:
            return
        known = self._known()
        for pid, found in list(self._tree.stats.items()):
            if pid in known or pid in self._told or known.intersection(self._tree.ancestors(pid)):
                continue
            busy_s = self._busy_seconds(pid, found.cpu_ticks, now)
            if busy_s < _BUSY_KNOWN_REASON_S or not _runs_torch(pid):
                continue
            reason = why_silent(self._tree.members[pid].command_line, procfs.environment(pid))
            if reason or busy_s >= _BUSY_S:
                self._told.add(pid)
                self._emit("no_agent", {"pid": pid, "host": self._host, "reason": reason or "unknown"})

    def _busy_seconds(self, pid: int, cpu_ticks: int, now: float) -> float:
        """For how long the process has used more than half a core without a break."""
        before_s, before_ticks = self._before.get(pid, (now, cpu_ticks))
        self._before[pid] = (now, cpu_ticks)
        elapsed = now - before_s
        if elapsed <= 0:
            return 0.0
        share = (cpu_ticks - before_ticks) / procfs.TICKS_PER_S / elapsed
        since = self._busy_since.setdefault(pid, now) if share > _BUSY_SHARE else now
        self._busy_since[pid] = since
        return now - since


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
    return "" if wire.ENV_SOCKET in environment else "the environment was cleared"


def _isolating_flag(command_line: list[str]) -> str:
    """The first interpreter option among ``-E``, ``-I`` and ``-S``; options after the script are the script's."""
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
