"""Who records a host's part of a run: a file lock tells, as a process id could be reused."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from gputop_probes.record.files import open_regular
from gputop_probes.record.private import open_private

NAME = "recorder.lock"


def acquire(host_dir: Path, timeout_s: float = 0.0) -> int | None:
    """Take the recorder's lock and return its descriptor; None when a recorder is at work.

    The lock goes with the process. A file system without locks counts as free.
    """
    descriptor = open_private(host_dir / NAME, os.O_RDWR)
    deadline = time.monotonic() + timeout_s
    while True:
        if _try_lock(descriptor, fcntl.LOCK_EX):
            return descriptor
        if time.monotonic() >= deadline:
            os.close(descriptor)
            return None
        time.sleep(0.02)


def held(host_dir: Path) -> bool:
    """Whether a recorder on this machine is at work in ``host_dir``."""
    try:
        descriptor = open_regular(host_dir / NAME)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
