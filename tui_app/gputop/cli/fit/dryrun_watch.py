"""When a trial is ended from outside: it takes too long, or stays after its steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gputop.cli.notices import notice

if TYPE_CHECKING:
    from gputop_probes.launch import RunHandle

LEAVE_S = 20.0
"""For the script's own clean-up, after the last rank has made its steps."""
_LOOK_S = 1.0
_AGAIN_S = 2.5
"""Between two requests to end, each sterner than the one before (SIGINT, SIGTERM, SIGKILL)."""


class Limit:
    """Ends the command of a trial in time; ``why`` says so, empty where it ended by itself."""

    def __init__(self, handle: RunHandle, steps: int, timeout_s: float):
        self.why = ""
        self._handle = handle
        self._steps = steps
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._done_at: float | None = None
        self._next = self._began + _LOOK_S

    def tick(self) -> None:
        """Look at most once a second."""
        now_s = time.monotonic()
        if now_s < self._next:
            return
        self._next = now_s + _LOOK_S
        self.why = self.why or self._reason(now_s)
        if self.why:
            if not self._handle.stopped_by_us:
                notice(f"{self.why}: stopping the command")
            self._handle.interrupt()
            self._next = now_s + _AGAIN_S

    def _reason(self, now: float) -> str:
        done = self._steps_done()
        if done >= self._steps:
            self._done_at = self._done_at or now
            if now - self._done_at > LEAVE_S:
                return "the script went on after its last step"
            return ""
        if now - self._began > self._timeout_s:
            return f"{done} of {self._steps} steps in {self._timeout_s:g} s (--timeout)"
        return ""

    def _steps_done(self) -> int:
        """Of the rank that is furthest behind; 0 where nothing can be read yet."""
        from gputop_analysis.summary import steps_done
        from gputop_probes.record.reader import RunRecord

        try:
            record = RunRecord.open(self._handle.run_dir)
            return min((steps_done(record, rank) for rank in record.ranks()), default=0)
        except Exception:  # the record is being set up: look again
            return 0
