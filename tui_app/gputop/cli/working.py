"""One line on stderr for a command that is silent for over a second: what it does meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

AFTER_S = 1.0
_ERASE = "\r\x1b[K"


@contextmanager
def working(what: str, in_place: bool = True) -> Iterator[None]:
    """Say ``what`` on stderr once the block has taken a second; nothing before.

    On a terminal the line counts the seconds and goes away at the end; elsewhere it is written
    once. A timer's signal and not a thread does it, as some commands fork. Inside another such
    block it does nothing.

    Args:
        what: begins in lower case, as in ``reading the record``.
        in_place: False where something else writes to the terminal meanwhile.
    """
    if threading.current_thread() is not threading.main_thread() or _taken():
        yield
        return
    counting = in_place and _is_terminal()
    began = time.monotonic()
    said = False

    def say(_number: int, _frame: object) -> None:
        nonlocal said
        said = True
        seconds = f" {time.monotonic() - began:.0f} s" if counting else ""
        _write(
            f"{_ERASE if counting else ''}gputop: {what} "
            f"...{seconds}{'' if counting else os.linesep}"
        )

    before = signal.signal(signal.SIGALRM, say)
    signal.setitimer(signal.ITIMER_REAL, AFTER_S, 1.0 if counting else 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if said and counting:
            _write(_ERASE)


def _taken() -> bool:
    return signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, signal.SIG_IGN, None)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _write(text: str) -> None:
    """Past Python's buffers: a signal handler may run in the middle of another write."""
    try:
        os.write(2, text.encode("utf-8", "replace"))
    except OSError:  # nobody reads it
        pass
