"""A terminal that vanishes without SIGHUP: gputop has its own session, or ignores it."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading

LOOK_EVERY_S = 0.5
LEAVE_WITHIN_S = 5.0


def watch() -> threading.Event:
    """Start a thread that ends this process as SIGHUP does once the terminal on stdin is gone.

    Without it Textual reads the end of the terminal's input over and over, on a whole core.

    Returns:
        What to set when the screen is left.
    """
    terminal_left = threading.Event()
    stdin = sys.__stdin__
    if stdin is not None and stdin.isatty():
        words = (stdin.fileno(), terminal_left)
        threading.Thread(target=_wait, args=words, name="hangup", daemon=True).start()
    return terminal_left


def _wait(terminal: int, left: threading.Event) -> None:
    poller = select.poll()
    poller.register(terminal, 0)  # a hangup is reported whatever is asked for
    while not poller.poll(0):
        if left.wait(LOOK_EVERY_S):
            return
    os.kill(os.getpid(), signal.SIGHUP)
    if not left.wait(LEAVE_WITHIN_S):
        os._exit(128 + signal.SIGHUP)  # nobody handled the signal
