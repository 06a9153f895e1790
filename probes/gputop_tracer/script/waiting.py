"""Where a script without a step is, every few seconds, and whether it waits for input."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from typing import Any, Callable

EVERY_S = 10.0
_READS = ("read", "readline", "readlines", "readinto", "buffer", "__iter__")


class Waiting:
    """Tells on stderr what a thread is at, until ``over`` says answered or out of time."""

    def __init__(
        self, path: str, limit_s: float, over: Callable[[], bool], give_up: Callable[[str], Any]
    ) -> None:
        self._path = path
        self._limit_s = limit_s
        self._over = over
        self._give_up = give_up
        self._thread = threading.current_thread().ident or 0
        self._stream = sys.stderr

    def begin(self) -> None:
        """Wait beside the calling thread, which runs the script."""
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        began = time.monotonic()
        while not self._over():
            time.sleep(EVERY_S)
            waited = time.monotonic() - began
            if self._over():
                return
            if waited >= self._limit_s:
                return self._give_up(
                    "made no whole step in %d s%s" % (self._limit_s, self._place(": it was at "))
                )
            self._tell(waited)

    def _tell(self, waited: float) -> None:
        text = "trace: no whole step after %d s%s; Ctrl-C stops it, the end is at %d s\n"
        self._stream.write(text % (waited, self._place(", now at "), self._limit_s))
        self._stream.flush()

    def _place(self, before: str) -> str:
        """The innermost line of the script that is at work."""
        frame: Any = sys._current_frames().get(self._thread)
        while frame is not None and frame.f_code.co_filename != self._path:
            frame = frame.f_back
        if frame is None:
            return ""
        return "%sline %d of %s" % (before, frame.f_lineno, os.path.basename(self._path))


class WatchedInput:
    """Standard input, which knows whether the script has asked for any."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.asked = False

    def __getattr__(self, name: str) -> Any:
        self.asked = self.asked or name in _READS
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        self.asked = True
        return iter(self._stream)

    def missed(self) -> bool:
        """Whether the script asked, and there is none: it was started without any."""
        try:
            return self.asked and stat.S_ISCHR(os.fstat(0).st_mode)
        except OSError:  # it is closed
            return True
