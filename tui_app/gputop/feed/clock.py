"""Time, injected, so that tests and snapshots stand still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the app takes the time from."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        ...

    def cpu_s(self) -> float:
        """Seconds of CPU that this process has used."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic(self) -> float:
        return time.monotonic()

    def cpu_s(self) -> float:
        return time.process_time()
