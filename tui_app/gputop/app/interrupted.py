"""An app taken off the screen by a signal, Ctrl-Z or error: the terminal is restored."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from textual.app import SuspendNotSupported
from textual.binding import Binding, BindingType

from gputop.app.leaving import LeavingApp
from gputop.app.source import AppResult, Source
from gputop_probes.relay import stop_ourselves

LEAVE_WITHIN_S = 4.0
_LEAVE = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_CHANGED = (*_LEAVE, signal.SIGINT, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
"""By Textual or by us, while a screen is open."""


class InterruptedApp(LeavingApp[AppResult]):
    """Signals go on to the command by the handlers from before; then the screen is left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+z", "suspend_process", show=False, priority=True)
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.hard_exit: threading.Timer | None = None
        self.failure: Exception | None = None
        """What the app died of."""

    def still_running(self) -> bool:
        """Whether the command that we watch is alive."""
        control = self.source.control
        return self.source.mode == "live" and control is not None and control.alive()

    def asked_to_end(self) -> bool:
        """Whether the command was asked to end, here or by a signal."""
        return self.source.control is not None and self.source.control.stopping()

    # ---- signals

    def install_signal_handlers(self) -> None:
        """Textual leaves the alternate screen on after these signals: clean up, or leave without if
        that blocks.

        Plain handlers and not the loop's: they also run while the loop is stuck in a write to a
        dead terminal.
        """
        if threading.current_thread() is not threading.main_thread():  # a test or an export
            return
        loop = asyncio.get_running_loop()
        for number in _LEAVE:
            before = signal.getsignal(number)
            if before != signal.SIG_IGN or number == signal.SIGHUP:
                signal.signal(number, self._leaving(loop, before))
        signal.signal(
            signal.SIGTSTP, lambda *_: loop.call_soon_threadsafe(self.action_suspend_process)
        )

    def _leaving(self, loop: asyncio.AbstractEventLoop, before: Any) -> Any:
        """A handler that lets the one before pass the signal on, and then leaves."""

        def handle(number: int, frame: Any) -> None:
            if callable(before):
                before(number, frame)
            self._must_leave(loop, number)

        return handle

    def _must_leave(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        if self.hard_exit is None:
            self.hard_exit = threading.Timer(LEAVE_WITHIN_S, os._exit, [128 + number])
            self.hard_exit.daemon = True
            self.hard_exit.start()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._leave_on_signal, number)

    def _leave_on_signal(self, number: int) -> None:
        running = self.still_running()
        self.exit(
            AppResult("detached" if running else "quit", running, number), return_code=128 + number
        )

    # ---- Ctrl-Z

    def action_suspend_process(self) -> None:
        """Give the terminal back and stop, command too; ``fg`` brings both back, ``bg`` it."""
        control = self.source.control
        if control is not None:
            control.suspend()
        try:
            with suppress(SuspendNotSupported), self.suspend():
                stop_ourselves()
                if control is not None:
                    control.resume()
        finally:
            if control is not None:
                control.resume()

    # ---- errors of our own

    def _handle_exception(self, error: Exception) -> None:
        """Textual would print fifty lines: they go beside the record, the caller says one."""
        self.failure = self.failure or error
        if self.is_headless:  # a test
            super()._handle_exception(error)
            return
        with suppress(OSError):
            text = "".join(traceback.format_exception(error))
            Path(self.source.run_dir, "screen-error.log").write_text(text)
        self._return_code = 1
        self._close_messages_no_wait()


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put back afterwards what a screen changed of this process's signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _CHANGED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
