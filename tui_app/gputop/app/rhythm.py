"""How often the screen changes: twice a second, less often when the feed or the terminal is late, or nothing moves."""

from __future__ import annotations

from typing import Any

from gputop.feed.clock import Clock
from gputop.feed.snapshot import Snapshot

FAST = 0.5
SLOW = 1.0
LATEST = 4.0
_SHARE = 0.12
"""The feed and the painting together may take this share of the time."""
_QUEUE = 4
"""Frames that may wait for the terminal before a tick is skipped."""


class Rhythm:
    """Keeps the period between two snapshots."""

    fast = FAST
    slow = SLOW

    def __init__(self, clock: Clock):
        self._clock = clock
        self.period = FAST

    def measured(self, feed_s: float, paint_s: float, snapshot: Snapshot) -> None:
        """Take in what the last snapshot cost; the period follows at once upwards and gently downwards."""
        base = SLOW if snapshot.ended and snapshot.position is None else FAST
        wanted = min(LATEST, max(base, (feed_s + paint_s) / _SHARE))
        self.period = wanted if wanted > self.period else max(wanted, self.period * 0.8)

    @staticmethod
    def backlogged(driver: Any) -> bool:
        """Whether frames pile up because the terminal reads slowly."""
        queue = getattr(getattr(driver, "_writer_thread", None), "_queue", None)
        return queue is not None and queue.qsize() > _QUEUE
