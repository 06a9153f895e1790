"""One PROCESS record a process of the run and tick: CPU, wait for a core, memory, faults, I/O."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gputop_probes import procfs
from gputop_probes.record import layout
from gputop_probes.samplers.tree import ProcessTree

_PSS_PERIOD_S = 10.0
_PSS_PERIOD_MAX_S = 120.0
_PSS_COST_SHARE = 0.001
"""``smaps_rollup`` locks the process's memory map while read: at most this share of time."""
_HELPERS = ("resource_tracker", "compile_worker", "torch._inductor", "semaphore_tracker")

RankPids = dict[int, tuple[int, int]]
"""pid -> (rank, native id of the training thread)."""


class ProcessSampler:
    """Samples the processes of one tree."""

    def __init__(self, tree: ProcessTree, ranks: Callable[[], RankPids], now_ns: Callable[[], int]):
        self.tree = tree
        self.tree_rss_bytes = -1
        self.tree_pss_bytes = -1
        self._ranks = ranks
        self._now_ns = now_ns
        self._pss: dict[int, int] = {}
        self._pss_due = 0.0

    def sample(self, ranks_only: bool) -> bytes:
        """Packed PROCESS records of all processes, or of the ranks alone between two full ticks."""
        ranks = self._ranks()
        if ranks_only:
            pids = [pid for pid in ranks if pid in self.tree.members]
            fresh = {}
            for pid in pids:
                if (stat := procfs.stat(pid)) is not None:
                    fresh[pid] = stat
        else:
            self.tree.refresh()
            fresh = self.tree.stats
        kinds = {pid: self._kind(pid, ranks) for pid in fresh}
        if ranks_only:
            pss = {}
        else:
            pss = self._read_pss(kinds)
        if not ranks_only:
            self.tree_rss_bytes = sum(stat.rss_bytes for stat in fresh.values())
        now_ns = self._now_ns()
        rows = []
        for pid, stat in fresh.items():
            role, rank = kinds[pid]
            pss_bytes = pss.get(pid, -1)
            row = self._pack(now_ns, pid, stat, role=role, rank=rank, ranks=ranks, pss=pss_bytes)
            rows.append(row)
        return b"".join(rows)

    def _kind(self, pid: int, ranks: RankPids) -> tuple[int, int]:
        """Kind of a process, and the rank that it is or works for (-1: none)."""
        if pid in ranks:
            return layout.PROCESS_RANK, ranks[pid][0]
        above = next(
            (ranks[parent][0] for parent in self.tree.ancestors(pid) if parent in ranks), None
        )
        if above is not None:
            words = " ".join(self.tree.members[pid].command_line)
            helper = any(name in words for name in _HELPERS)
            return (layout.PROCESS_OTHER if helper else layout.PROCESS_WORKER), above
        if any(pid in self.tree.ancestors(rank) for rank in ranks):
            return layout.PROCESS_LAUNCHER, -1
        return layout.PROCESS_OTHER, -1

    def _read_pss(self, kinds: dict[int, tuple[int, int]]) -> dict[int, int]:
        """Proportional set sizes of ranks and workers; seldom where reading them takes long."""
        started = time.monotonic()
        if started < self._pss_due:
            return {}
        wanted = (layout.PROCESS_RANK, layout.PROCESS_WORKER)
        by_pid = {}
        for pid, (role, _) in kinds.items():
            if role in wanted:
                by_pid[pid] = _pss_bytes(pid)
        took = time.monotonic() - started
        self._pss_due = started + min(_PSS_PERIOD_MAX_S, max(_PSS_PERIOD_S, took / _PSS_COST_SHARE))
        self._pss = by_pid
        unread_bytes = sum(
            stat.rss_bytes for pid, stat in self.tree.stats.items() if pid not in by_pid
        )
        self.tree_pss_bytes = -1
        if by_pid:
            self.tree_pss_bytes = unread_bytes + sum(max(0, size) for size in by_pid.values())
        return by_pid

    def _pack(
        self,
        now_ns: int,
        pid: int,
        stat: procfs.Stat,
        *,
        role: int,
        rank: int,
        ranks: RankPids,
        pss: int,
    ) -> bytes:
        if pid in ranks:
            tid = ranks[pid][1]
        else:
            tid = pid
        on_cpu, waited = _schedstat(pid, tid)
        voluntary, involuntary = _switches(pid, tid)
        read, written = _io(pid)
        return layout.PROCESS.pack(
            now_ns,
            stat.cpu_ticks * procfs.NS_PER_TICK,
            on_cpu if role == layout.PROCESS_RANK else -1,
            waited,
            voluntary,
            involuntary,
            stat.minor_faults,
            stat.major_faults,
            stat.rss_bytes,
            pss,
            read,
            written,
            pid,
            stat.ppid,
            rank,
            role,
            stat.threads,
            ord(stat.state),
            _open_files(pid),
            0,
        )


def _schedstat(pid: int, tid: int) -> tuple[int, int]:
    """Nanoseconds that a thread ran and waited for a core; -1 where the kernel does not tell."""
    parts = (procfs.read_bytes(f"/proc/{pid}/task/{tid}/schedstat") or b"").split()
    if len(parts) >= 2:
        return (int(parts[0]), int(parts[1]))
    return (-1, -1)


def _switches(pid: int, tid: int) -> tuple[int, int]:
    raw = procfs.read_bytes(f"/proc/{pid}/task/{tid}/status") or b""
    return _number_after(raw, b"\nvoluntary_ctxt_switches:"), _number_after(
        raw, b"nonvoluntary_ctxt_switches:"
    )


def _io(pid: int) -> tuple[int, int]:
    """Bytes read from and written to storage."""
    raw = procfs.read_bytes(f"/proc/{pid}/io") or b""
    return _number_after(raw, b"\nread_bytes:"), _number_after(raw, b"\nwrite_bytes:")


def _pss_bytes(pid: int) -> int:
    kib = _number_after(procfs.read_bytes(f"/proc/{pid}/smaps_rollup") or b"", b"\nPss:")
    if kib >= 0:
        return kib * 1024
    return -1


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return -1


def _number_after(raw: bytes, label: bytes) -> int:
    start = raw.find(label)
    if start < 0:
        return -1
    return int(raw[start + len(label) :].split(None, 1)[0])
