"""SIGTERM, SIGHUP and SIGINT ask the recorder to end its record; the training is not told."""

from __future__ import annotations

import signal
import socket
import time

from gputop_probes.inherited import HELD

LINGER_S = 2.0
"""Seconds the recorder then waits for the command to end too: schedulers signal both at once."""
_LEAVE = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def drop_pending() -> None:
    """Forget what was meant for the front, whose group this process left. Signals stay held."""
    for number in HELD:
        signal.signal(number, signal.SIG_IGN)
        signal.signal(number, signal.SIG_DFL)
    for number in _LEAVE:
        signal.signal(number, signal.SIG_IGN)


def unblock() -> None:
    """Let signals in: from now on somebody notes them."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


class LeaveRequest:
    """Installed before the command starts, so that no signal can end the recorder half-way."""

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._awake, self._wake = socket.socketpair()
        self._awake.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in _LEAVE:
            signal.signal(number, self._note)

    def fileno(self) -> int:
        """Can be read after a signal, so that a sleeping loop wakes up."""
        return self._awake.fileno()

    def clear(self) -> None:
        """Forget the wake-up, not the request."""
        try:
            self._awake.recv(64)
        except BlockingIOError:
            pass

    def due(self) -> bool:
        """Whether it is time to leave."""
        return self._asked_at is not None and time.monotonic() >= self._asked_at + LINGER_S

    def _note(self, _number: int, _frame: object) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
