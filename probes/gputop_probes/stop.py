"""Ends the processes of a run, also those in sessions of their own (torchrun)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from gputop_agent import wire
from gputop_probes import procfs

ESCALATION = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ESCALATION_WINDOW_S = 3.0
_DYING_S = 0.3


class Escalation:
    """Ctrl-C, and what the second and third one within three seconds mean.

    Args:
        ignored: signals that the command was started to ignore; they are passed over.
    """

    def __init__(self, ignored: Iterable[int] = ()) -> None:
        self._ladder = [number for number in ESCALATION if number not in set(ignored)]
        self._presses = 0
        self._last = float("-inf")

    def next_signal(self) -> int:
        """The signal for one more press."""
        now_s = time.monotonic()
        if now_s - self._last <= ESCALATION_WINDOW_S:
            self._presses = self._presses + 1
        else:
            self._presses = 1
        self._last = now_s
        return self._ladder[min(self._presses, len(self._ladder)) - 1]


def deliver(number: int, pgid: int, run_id: str, seen_pids: Iterable[int] = ()) -> None:
    """Send a signal to the command's process group; SIGKILL goes to every process of the run.

    Args:
        number: the signal.
        pgid: the command's process group.
        run_id: as in ``GPUTOP_RUN_ID``.
        seen_pids: pids that were seen in the command's process tree.
    """
    if number == signal.SIGKILL:
        kill_all(processes(run_id, pgid, seen_pids), number)
    else:
        _quietly(os.killpg, pgid, number)


def processes(run_id: str, pgid: int, seen_pids: Iterable[int] = ()) -> list[int]:
    """Living processes of a run: marked by its id, descended from one, in its group, or seen
    before.
    """
    stats = {
        pid: stat for pid in procfs.pids() if (stat := procfs.stat(pid)) and stat.state not in "ZX"
    }
    ours = {pid for pid, stat in stats.items() if stat.pgid == pgid or _marked(pid, run_id)}
    ours |= {pid for pid in seen_pids if pid in stats}
    growing = True
    while growing:
        children = {pid for pid, stat in stats.items() if stat.ppid in ours} - ours
        ours |= children
        growing = bool(children)
    return sorted(ours - {os.getpid(), os.getppid()})


def kill_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        _quietly(os.kill, pid, number)


def suspend(run_id: str, pgid: int, seen_pids: Iterable[int] = ()) -> list[int]:
    """Stop every process of a run as Ctrl-Z would. Returns who was told.

    A process that catches SIGTSTP gets that signal, one that ignores it none; the rest get SIGSTOP,
    since the kernel drops SIGTSTP in a group that no shell looks after.
    """
    suspended = []
    for pid in processes(run_id, pgid, seen_pids):
        stat = procfs.stat(pid)
        if stat is None or stat.state in "Tt" or procfs.ignores(pid, signal.SIGTSTP):
            continue
        catches = procfs.catches(pid, signal.SIGTSTP)
        _quietly(os.kill, pid, signal.SIGTSTP if catches else signal.SIGSTOP)
        suspended.append(pid)
    return suspended


def terminate(
    run_id: str, pgid: int, seen_pids: Iterable[int] = (), grace_s: float = 3.0
) -> list[int]:
    """SIGTERM to what is left of a run, SIGKILL after ``grace_s``. Returns who was left."""
    seen_pids = list(seen_pids)
    remaining = processes(run_id, pgid, seen_pids)
    _wait_for(remaining, _DYING_S)  # those that the last signal reached are on their way
    remaining = [pid for pid in remaining if procfs.alive(pid)]
    kill_all(remaining, signal.SIGTERM)
    _wait_for(remaining, grace_s)
    kill_all(processes(run_id, pgid, seen_pids) if remaining else [], signal.SIGKILL)
    return remaining


def _wait_for(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(procfs.alive(pid) for pid in pids):
        time.sleep(0.02)


def _marked(pid: int, run_id: str) -> bool:
    raw = procfs.read_bytes(f"/proc/{pid}/environ")
    return raw is not None and f"{wire.ENV_RUN_ID}={run_id}\0".encode() in raw


def _quietly(kill, target: int, number: int) -> None:
    """``os.kill`` or ``os.killpg`` on somebody who may be gone; never on everybody."""
    if target <= 1:
        return
    try:
        kill(target, number)
    except (ProcessLookupError, PermissionError):
        pass
