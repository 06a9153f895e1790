"""Programs outside the run that use the cores, named for advice to say whom to look at."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gputop_probes import procfs
from gputop_probes.samplers.tree import ProcessTree

_FIRST_S, _PERIOD_S = 2.0, 10.0
_COST_SHARE = 0.001
"""Looking through thousands of processes takes at most this share of the time."""
_LEAST_CORES = 0.2
_TOP = 4

Emit = Callable[[str, dict], None]


class NeighbourWatch:
    """Called every second or so, from the sampler's thread."""

    def __init__(self, tree: ProcessTree, host: str, emit: Emit):
        self._tree = tree
        self._host = host
        self._emit = emit
        self._due_s = 0.0
        self._looked_s = 0.0
        self._ticks: dict[tuple[int, int], int] = {}
        self._ours = gputops_own()

    def check(self) -> None:
        """Send a ``neighbours`` event if programs outside the run used a core meanwhile."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        before, since, first = self._ticks, now_s - self._looked_s, not self._ticks
        began = time.thread_time()
        names = self._look()
        self._looked_s = now_s
        took = time.thread_time() - began
        self._due_s = now_s + (_FIRST_S if first else max(_PERIOD_S, took / _COST_SHARE))
        if first:
            return
        used = {
            key: (ticks - before[key]) / procfs.TICKS_PER_S / since
            for key, ticks in self._ticks.items()
            if key in before
        }
        busy = sorted(
            (key for key in used if used[key] >= _LEAST_CORES), key=lambda key: -used[key]
        )[:_TOP]
        if busy:
            neighbours = [
                {"pid": key[0], "name": names[key], "cores": round(used[key], 2)} for key in busy
            ]
            self._emit("neighbours", {"host": self._host, "processes": neighbours})

    def _look(self) -> dict[tuple[int, int], str]:
        """Note CPU times of processes neither the run's nor gputop's; returns their names."""
        names, self._ticks = {}, {}
        for pid in procfs.pids():
            if pid in self._tree.members:
                stat = None
            else:
                stat = procfs.stat(pid)
            if stat is not None and stat.cpu_ticks and not self._ours & {pid, stat.ppid}:
                key = pid, stat.start_ticks
                self._ticks[key] = stat.cpu_ticks
                names[key] = "".join(c if c.isprintable() else "?" for c in stat.name)
        return names


def gputops_own() -> set[int]:
    """This process, the recorder, and the front that it was forked from: what they and their other
    children use is gputop's.

    The front shares its command line; another parent, such as init, does not.
    """
    recorder, parent = os.getpid(), os.getppid()
    words = procfs.command_line(recorder)
    if words and procfs.command_line(parent) == words:
        return {recorder, parent}
    return {recorder}
