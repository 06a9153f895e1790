"""Inbox from the samplers' threads to the recorder's, the only one that writes."""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from typing import Any


class Inbox:
    """A queue of ready work for the recorder; safe to fill from any thread."""

    def __init__(self) -> None:
        self.records: deque[tuple[str, bytes]] = deque(maxlen=10_000)
        """Table name and whole packed records."""
        self.events: deque[tuple[str, dict[str, Any]]] = deque(maxlen=1_000)
        self.state: deque[dict[str, Any]] = deque(maxlen=100)
        """Changes to ``host.json``."""


class SamplerThread:
    """Calls ``sample`` once a period until told to stop; an exception is reported and the next tick
    tries again.

    No ``threading.Thread``: its ``start`` waits for a thread that, short of memory, may have died
    before it began.
    """

    def __init__(
        self,
        name: str,
        period_s: float,
        sample: Callable[[], None],
        on_error: Callable[[str], None],
    ):
        self.name = name
        self._period_s = period_s
        self._sample = sample
        self._on_error = on_error
        self._stop_asked = threading.Event()
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to sample.

        Raises:
            RuntimeError: the system gives no thread.
        """
        start_new_thread(self._run, ())

    def stop(self) -> None:
        """Ask the thread to end after its current sample."""
        self._stop_asked.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended, for so long at most. Returns whether it has."""
        return self._ended.wait(timeout_s)

    def _run(self) -> None:
        """Sample on an even beat; a late tick is dropped, not made up for."""
        due = time.monotonic()
        while not self._stop_asked.wait(max(0.0, due - time.monotonic())):
            try:
                self._sample()
            except Exception:
                self._on_error(self.name)
            due = max(due + self._period_s, time.monotonic())
        self._ended.set()
