"""What became of the command, in memory that front and recorder share: told without a system call
that could fail.

It outlives the recorder: how a command ended is not lost with the process that waited for it.
"""

from __future__ import annotations

import mmap
import os
import time

_FORKING, _PID, _STATUS = 0, 1, 2
_CELLS = 3
_FORK_WITHIN_S = 1.0


class Fate:
    """Made by the front before it forks the recorder.

    Raises:
        OSError: no memory.
    """

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, 8 * _CELLS)).cast("q")

    def note_forking(self) -> None:
        """The recorder is about to fork the process that becomes the command."""
        self._cells[_FORKING] = 1

    def note_not_forked(self) -> None:
        """There is no such process after all."""
        self._cells[_FORKING] = self._cells[_PID] = 0

    def note_self(self) -> None:
        """This process becomes the command."""
        self._cells[_PID] = os.getpid()

    def note_end(self, wait_status: int) -> None:
        """The command has ended."""
        self._cells[_STATUS] = wait_status + 1

    def pid(self) -> int | None:
        """The command's process, also of a recorder that died in its fork; None without one."""
        deadline = time.monotonic() + _FORK_WITHIN_S
        while self._cells[_FORKING] and not self._cells[_PID] and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._cells[_PID] or None

    def wait_status(self) -> int | None:
        """How the command ended; None if nobody has learnt it."""
        return self._cells[_STATUS] - 1 if self._cells[_STATUS] else None
