"""What the recorder does besides reading: installed after the command runs, so that none of it delays the start."""

from __future__ import annotations

import time
from collections.abc import Callable

from gputop_probes.recorder.loop import Recorder


def install(recorder: Recorder, hang_s: float | None) -> None:
    """Give the recorder its chores and samplers."""
    del hang_s
    recorder.chores.append(("socket", every(3.0, recorder.socket_chore)))


def every(seconds: float, work: Callable[[], None]) -> Callable[[], None]:
    """``work``, but no more often than every so many seconds."""
    due = time.monotonic() + seconds

    def chore() -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + seconds
            work()

    return chore
