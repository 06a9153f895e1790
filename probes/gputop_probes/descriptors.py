"""Our own standard streams, which may have been closed before we were started (``<&-``)."""

from __future__ import annotations

import errno
import os
import sys

closed_at_start: set[int] = set()
"""Which of 0, 1 and 2 were missing."""


def fill_closed() -> None:
    """Open what we were started without: no file of ours gets a standard stream's number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno == errno.EBADF:
                closed_at_start.add(number)
                os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115
