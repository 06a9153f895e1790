"""The thread that samples ranks twice a second, all processes and the host once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gputop_probes import procfs
from gputop_probes.samplers.cgroup import Cgroup
from gputop_probes.samplers.host import HostSampler
from gputop_probes.samplers.inbox import Inbox
from gputop_probes.samplers.processes import ProcessSampler, RankPids
from gputop_probes.samplers.tree import ProcessTree

PERIOD_S = 0.5


class SystemSampler:
    """Processes and host in one beat."""

    def __init__(
        self,
        inbox: Inbox,
        root_pid: int,
        *,
        run_id: str,
        ranks: Callable[[], RankPids],
        now_ns: Callable[[], int],
        cpu_count: int,
        logs: Sequence[Path],
    ):
        self.tree = ProcessTree(root_pid, run_id)
        self._inbox = inbox
        self._processes = ProcessSampler(self.tree, ranks, now_ns)
        self._host = HostSampler(Cgroup(root_pid), cpu_count, now_ns, logs=logs)
        self._next_full = 0.0
        self._seen: set[int] = set()

    def sample(self) -> bool:
        """One tick. Returns whether it was a full one, at which the tree was looked at anew."""
        now_s = time.monotonic()
        full = now_s >= self._next_full
        if full:
            self._next_full = now_s + 2 * PERIOD_S - PERIOD_S / 2
        records = self._processes.sample(ranks_only=not full)
        if records:
            self._inbox.records.append(("process", records))
        if full:
            tree = self._processes
            self._inbox.records.append(
                (
                    "host",
                    self._host.sample(
                        tree.tree_rss_bytes, tree.tree_pss_bytes, len(self.tree.members)
                    ),
                )
            )
            self._reap_adopted()
        return full

    def known_pids(self) -> list[int]:
        """Pids of the run's processes at the last full tick."""
        return list(self.tree.members)

    def _reap_adopted(self) -> None:
        """Reap processes of the run whose parent died: our children now, else zombies."""
        self._seen |= self.tree.members.keys()
        for pid in list(self._seen - self.tree.members.keys()):
            stat = procfs.stat(pid)
            if (
                stat is not None
                and stat.state == "Z"
                and stat.ppid == os.getpid()
                and pid != self.tree.root
            ):
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass
            self._seen.discard(pid)
