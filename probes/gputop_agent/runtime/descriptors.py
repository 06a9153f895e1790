"""Descriptors of the guest, in a process whose numbers belong to the user's code.

A script may close all numbers at any time (daemons, ``os.closerange``), and what it opens next gets
ours. So what is kept lies at a high number, where a script's own files never come by themselves,
and is compared before each use.
"""

import os
from typing import Any

from gputop_agent.runtime import interrupts

try:
    import fcntl
    import resource
except ImportError:  # not Unix
    fcntl = None
    resource: Any = None

HIGH = 800  # below the limit of select(), above what scripts count on


def identity(number):
    """``(device, inode)`` of what lies at a number now; None if nothing does."""
    try:
        status = os.fstat(number)
    except OSError:
        interrupts.pass_on()
        return None
    return status.st_dev, status.st_ino


def close(number, was):
    """Close a number if what lies there still has the identity ``was``."""
    if was is not None and identity(number) == was:
        os.close(number)


def raised(number):
    """Move our descriptor to a high number, closed on exec. Returns it, else ``number``."""
    if fcntl is None:
        return number
    was = identity(number)
    try:
        high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _lowest())
    except (OSError, ValueError):
        interrupts.pass_on()
        return number
    close(number, was)
    return high


def stat_fields(path):
    """Fields of a ``stat`` of ``/proc`` after the name, which may hold spaces. Raises OSError."""
    return read(path).rpartition(b")")[2].split()


def read(path, size=4096):
    """The first bytes of a file. Raises OSError."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    was = identity(number)
    try:
        return os.read(number, size)
    finally:
        close(number, was)


def _lowest():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return HIGH
    return min(HIGH, limit * 3 // 4)
