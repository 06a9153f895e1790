"""What gputop was started with, and its command is to find again: signal mask, ignored signals,
resource limits, umask.

gputop needs others for itself: signals held back around a start, room under the limits, records for
nobody else.
"""

from __future__ import annotations

import os
import resource
import signal
from typing import NamedTuple

HELD = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Held back while a command starts: none may end us before handlers pass them on."""
_SET_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by Python for itself; a shell's child finds the default."""
_LIMITS = tuple(
    getattr(resource, name)
    for name in (
        "RLIMIT_NOFILE",
        "RLIMIT_NPROC",
        "RLIMIT_FSIZE",
        "RLIMIT_AS",
        "RLIMIT_DATA",
        "RLIMIT_CPU",
    )
    if hasattr(resource, name)
)
_DESCRIPTORS = 1024
"""More open files than this we never need."""


class Inherited(NamedTuple):
    """The state of a process before gputop changed it for itself."""

    mask: frozenset[int]
    ignored: tuple[int, ...]
    """What of ``HELD`` and SIGCHLD was ignored: by ``nohup``, a background job, ``trap ''``."""
    limits: dict[int, tuple[int, int]]
    """Soft and hard, of those that were changed."""
    umask: int

    def give_back(self) -> None:
        """Undo what was changed, in a process that is about to become the command.

        What arrived meanwhile waits until the mask is undone, and then meets the dispositions of a
        bare start.
        """
        for number in (*HELD, signal.SIGCHLD, *_SET_BY_PYTHON):
            signal.signal(number, signal.SIG_IGN if number in self.ignored else signal.SIG_DFL)
        for limit, limits in self.limits.items():
            try:
                resource.setrlimit(limit, limits)
            except (OSError, ValueError):
                pass
        os.umask(self.umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def let_go(self) -> None:
        """Let signals through again, in a process that stays ours and is no recorder."""
        os.umask(self.umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def hold() -> Inherited:
    """Hold signals back, raise limits, make files for this user alone. Returns the state before."""
    mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, HELD))
    ignored = tuple(n for n in (*HELD, signal.SIGCHLD) if signal.getsignal(n) == signal.SIG_IGN)
    if signal.SIGCHLD in ignored:  # nobody could learn how the command ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return Inherited(mask, ignored, _raise_limits(), os.umask(0o077))


def _raise_limits() -> dict[int, tuple[int, int]]:
    changed = {}
    for limit in _LIMITS:
        soft, hard = resource.getrlimit(limit)
        if limit == resource.RLIMIT_NOFILE:
            wanted = _DESCRIPTORS
        else:
            wanted = resource.RLIM_INFINITY
        if soft == resource.RLIM_INFINITY or 0 < wanted <= soft:
            continue
        if _set_limit(limit, wanted, hard):
            changed[limit] = (soft, hard)
    return changed


def _set_limit(kind: int, wanted: int, hard: int) -> bool:
    """Raise a soft limit to the hard one, or beyond if allowed. Returns whether it changed."""
    if hard == resource.RLIM_INFINITY or 0 < wanted <= hard:
        above = wanted
    else:
        above = hard
    for limits in ((wanted, max(wanted, hard, key=_size)), (above, hard)):
        try:
            resource.setrlimit(kind, limits)
        except (OSError, ValueError):
            continue
        return True
    return False


def _size(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit
