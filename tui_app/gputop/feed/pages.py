"""What a screen above the main one shows besides the snapshot, read from the record while that
screen is open.

The screen says what it wants; the worker thread that takes the snapshots reads it, no oftener than
its cost allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gputop.feed.clock import Clock

if TYPE_CHECKING:
    from gputop.feed.snapshot import Snapshot
    from gputop_probes.record.reader import RunRecord

LEAST_PERIOD_S = 1.0
COST_SHARE = 0.03
"""Of a core, for what such a screen reads."""


class Loader(Protocol):
    """Reads one screen's data. Two that are equal read the same; called in a worker thread."""

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> object: ...


class PageReader:
    """Holds what was read last."""

    def __init__(self, clock: Clock):
        self.wanted: Loader | None = None
        self._clock = clock
        self._read_for: Loader | None = None
        self._page: object | None = None
        self._stale = False
        self._next = 0.0

    def read(self, record: RunRecord, snapshot: Snapshot, moved: bool) -> object | None:
        """The wanted data; ``moved`` says that the record is not what it was at the last call.

        A reader that fails is a fault of ours: the screen says so, and everything else goes on.
        """
        wanted = self.wanted
        if wanted is None:
            self._read_for = self._page = None
            return None
        self._stale = self._stale or moved
        now_s = self._clock.monotonic()
        if wanted == self._read_for and not (self._stale and now_s >= self._next):
            return self._page
        began = self._clock.monotonic()
        try:
            self._page = wanted(record, snapshot)
        except Exception as error:
            from gputop.feed.plots import Trouble

            self._page = Trouble(f"this could not be read: {type(error).__name__}: {error}")
        self._read_for, self._stale = wanted, False
        self._next = now_s + max(LEAST_PERIOD_S, (self._clock.monotonic() - began) / COST_SHARE)
        return self._page
