"""The end of what a command printed, as the record has it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gputop_analysis.view import RunView

TAIL_BYTES = 32_768


def last_outputs(view: RunView) -> Iterator[str]:
    """The last 32 KiB of each file of recorded output, errors first; empty: not readable."""
    for host in view.record.hosts.values():
        for name in ("stderr.log", "output.log"):
            yield _tail(host.path / name)


def _tail(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return ""
        read = os.pread(descriptor, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
        return read.decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
