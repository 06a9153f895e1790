"""Table of the ranks: which process is which, and how far each has come."""

from __future__ import annotations

import time
from collections import deque

from gputop_agent import wire
from gputop_probes import procfs

_STEP_INDEX = [name for name, _ in wire.STEP_FIELDS].index("step")
_COUNT_INDEX = [name for name, _ in wire.STEP_FIELDS].index("n_steps")
_WALL_INDEX = [name for name, _ in wire.STEP_FIELDS].index("wall_ns")
_COMM_INDEX = [name for name, _ in wire.STEP_FIELDS].index("comm_ns")
_LONGEST_INDEX = [name for name, _ in wire.STEP_FIELDS].index("wall_max_ns")
_DROPPED_INDEX = [name for name, _ in wire.STEP_FIELDS].index("dropped")
_RECENT = 64
FIRST_STEPS = 5
"""They hold compilation and caches that fill."""


class Rank:
    """One rank and the process that is it now."""

    def __init__(self, number: int, pid: int, attempt: int):
        self.number = number
        self.pid = pid
        self.attempt = attempt
        self.tid = pid
        """Native id of the training thread."""
        self.connected = True
        self.said_goodbye = False
        self.steps_seen = 0
        self.last_step = -1
        self.dropped = 0
        self.comm_records = 0
        self.wall_ns = self.called_ns = 0
        """Time of its steps, and of collectives in them that the script calls by itself."""
        self.progress_s = time.monotonic()
        """Monotonic time in seconds when it last showed life that counts as progress."""
        self.moved_s = float("-inf")
        """Monotonic time in seconds when it last said that it works although no step ends."""
        self.longest_s = 0.0
        """The longest step after the first ones."""
        self._recent_ns: deque[float] = deque(maxlen=_RECENT)

    def moves(self) -> None:
        """Note that it evaluates, saves or compiles: it works although no step ends."""
        self.moved_s = self.progress_s = time.monotonic()

    def saw_steps(self, records: bytes) -> None:
        """Take in the STEP records of a message."""
        for fields in wire.STEP.iter_unpack(records):
            self.wall_ns += fields[_WALL_INDEX]
            self.called_ns += fields[_COMM_INDEX]
            if fields[_STEP_INDEX] >= FIRST_STEPS:
                self.longest_s = max(self.longest_s, fields[_LONGEST_INDEX] / 1e9)
        fields = wire.STEP.unpack(records[-wire.STEP.size :])
        count = max(1, fields[_COUNT_INDEX])
        self.steps_seen = max(self.steps_seen + 1, fields[_STEP_INDEX] + 1)
        self.last_step = fields[_STEP_INDEX]
        self.dropped = fields[_DROPPED_INDEX]
        self._recent_ns.append(fields[_WALL_INDEX] / count)
        self.progress_s = time.monotonic()

    def median_step_s(self) -> float:
        """Median step time over the last records; 0 before the first."""
        ordered = sorted(self._recent_ns)
        if ordered:
            return ordered[len(ordered) // 2] / 1e9
        return 0.0


class RankAssignment:
    """Gives every training process its rank."""

    def __init__(self) -> None:
        self.by_number: dict[int, Rank] = {}

    def claim(self, pid: int, wanted: int | None) -> tuple[Rank, bool]:
        """The rank of a process, and whether the process is new in it.

        A process that was seen keeps its rank. A new one gets the rank it asks for; when a living
        process has that one (``mp.spawn`` without a process group), the next free. In a dead
        process's place it is the next attempt.
        """
        claimed = self.of_pid(pid)
        if claimed is not None:
            claimed.connected = True
            return claimed, False
        if wanted is not None and self._free(wanted):
            number = wanted
        else:
            number = self._next_free()
        before = self.by_number.get(number)
        rank = self.by_number[number] = Rank(number, pid, before.attempt + 1 if before else 0)
        return rank, True

    def restore(self, number: int, pid: int, attempt: int) -> None:
        """Remember a rank that an earlier recorder of this run knew."""
        rank = self.by_number[number] = Rank(number, pid, attempt)
        rank.connected = False

    def of_pid(self, pid: int) -> Rank | None:
        """The rank that a process is now."""
        return next((rank for rank in self.by_number.values() if rank.pid == pid), None)

    def connected(self) -> list[Rank]:
        """Ranks whose process holds a connection."""
        return [rank for rank in self.by_number.values() if rank.connected]

    def _free(self, number: int) -> bool:
        holder = self.by_number.get(number)
        return holder is None or not (holder.connected or procfs.alive(holder.pid))

    def _next_free(self) -> int:
        number = 0
        while number in self.by_number and not self._free(number):
            number += 1
        return number
