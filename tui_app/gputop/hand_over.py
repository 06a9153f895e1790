"""Gives our terminal to the command for a while: shows its output, passes on its input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gputop_probes.keyboard import LEAVE_KEY, Keyboard, Keys

if TYPE_CHECKING:
    from gputop_probes.launch import RunHandle

_POLL_MS = 50
_SHOWN_BYTES = 2000
"""Of what was written before."""
_BEGIN = "gputop: this terminal is the command's now; Ctrl-] brings the screen back\n"


def hand_over(handle: RunHandle) -> None:
    """Type into the command until Ctrl-] or its end.

    Args:
        handle: a run with a terminal of its own.

    Raises:
        ValueError: it has none, because somebody else started it.
    """
    if handle.console is None:
        raise ValueError("only the gputop that started the command can type into it")
    keys = Keys(interrupt=handle.interrupt, suspend=lambda: None)
    log = _Log(handle.host_dir / "output.log")
    os.write(1, _BEGIN.encode())
    with Keyboard(handle.console, handle.pgid, keys, LEAVE_KEY) as keyboard:
        while not keyboard.left and handle.wait(0) is None:
            log.show()
            keyboard.turn(_POLL_MS)
    log.show()


class _Log:
    """The end of the log, and what is appended to it."""

    def __init__(self, path: Path):
        self._path = path
        self._offset = -1

    def show(self) -> None:
        """Write what is new on our terminal."""
        try:
            with self._path.open("rb") as file:
                if self._offset < 0:
                    self._offset = max(0, file.seek(0, os.SEEK_END) - _SHOWN_BYTES)
                file.seek(self._offset)
                if data := file.read():
                    self._offset += len(data)
                    _write(data)
        except OSError:
            pass


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
