"""Passes the front's signals on to the command, as they would have reached it in a bare start."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Protocol

_PASSED_ON = (signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Signalled(Protocol):
    """Who acts on the signals: the handle of the run."""

    def signal(self, number: int) -> None:
        """Pass it on to the command."""
        ...

    def interrupt(self) -> object:
        """Ctrl-C: each call is one step sterner than the last."""
        ...

    def suspend(self) -> None:
        """Stop every process of the command."""
        ...

    def resume(self) -> None:
        """Let them go on."""
        ...


class Relay:
    """Handlers that act at once: there is no moment at which a signal would find nobody.

    Ctrl-C escalates as on a terminal. SIGHUP is ignored: a closed terminal must not end a training.
    Signals that were ignored when gputop was started stay so.
    """

    def __init__(self, handle: Signalled, ignored: tuple[int, ...]):
        self._handle = handle
        self._ignored = ignored
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Take the signals over; only a process's main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        handlers: dict[int, Any] = dict.fromkeys(_PASSED_ON, self._pass_on)
        handlers[signal.SIGINT] = self._interrupt
        handlers[signal.SIGTSTP] = self._suspend
        handlers[signal.SIGHUP] = signal.SIG_IGN
        for number, handler in handlers.items():
            if number not in self._ignored:
                self._before[number] = signal.signal(number, handler)

    def restore(self) -> None:
        """The handlers from before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _pass_on(self, number: int, _frame: object) -> None:
        self._handle.signal(number)

    def _interrupt(self, _number: int, _frame: object) -> None:
        self._handle.interrupt()

    def _suspend(self, number: int, _frame: object) -> None:
        """Ctrl-Z: the command's session is not the terminal's: we stop and continue it."""
        self._handle.suspend()
        stop_ourselves(number)
        self._handle.resume()


def stop_ourselves(number: int = signal.SIGTSTP) -> None:
    """Stop this process as its shell expects; returns when it goes on."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        os.kill(os.getpid(), number)
        # delivered here, where it was held back
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        signal.signal(number, before)
