"""How often the screen changes: twice a second, less often when that costs too much CPU, or when
nothing moves.

What counts is CPU time and not how long it took: on a machine that is busy training, a snapshot
that waited for a core cost no more than another. A feed or a terminal that is late slows the screen
by itself, since a tick follows the last.
"""

from __future__ import annotations

from typing import Any

from gputop.feed.clock import Clock
from gputop.feed.snapshot import Snapshot

FAST = 0.5
SLOW = 2.0
"""Where nothing moves: a run that has ended, a feed that failed."""
SLOWEST = 15.0
"""For runs of a thousand ranks, whose snapshot takes most of a second of CPU."""
_SHARE = 0.045
"""Of a core, for all that the app does."""
_SHARE_AT_FIRST, FIRST_S = 0.25, 5.0
"""The same in the first seconds: a training that starts is looked at, and imports and the first
frame are none of what a snapshot costs.
"""
_QUEUE = 4
"""Frames that may wait for the terminal before a tick is skipped."""


class Rhythm:
    """Keeps the period between two snapshots, in seconds."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._cpu_s: float | None = None
        self._first_until_s = clock.monotonic() + FIRST_S
        self.period = FAST

    def measure(self, snapshot: Snapshot) -> None:
        """Take in what has been used since the last call; the period follows gently."""
        cpu_s = self._clock.cpu_s()
        if self._cpu_s is None:
            self._cpu_s = cpu_s
            return
        used, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        if snapshot.ended and snapshot.position is None:
            shortest = SLOW
        else:
            shortest = FAST
        is_first = self._clock.monotonic() < self._first_until_s
        wanted = min(SLOWEST, max(shortest, used / (_SHARE_AT_FIRST if is_first else _SHARE)))
        self.period = 0.7 * self.period + 0.3 * wanted

    @staticmethod
    def backlogged(driver: Any) -> bool:
        """Whether frames pile up because the terminal reads slowly."""
        queue = getattr(getattr(driver, "_writer_thread", None), "_queue", None)
        return queue is not None and queue.qsize() > _QUEUE
