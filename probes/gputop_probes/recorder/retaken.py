"""Finds the output of a running command again, for a recorder that did not start it."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from pathlib import Path
from typing import Any

from gputop_probes import output, procfs
from gputop_probes.output import OutputHolder, Route

_PIDFD_GETFD = 438


def find_output(host_dir: Path, state: dict[str, Any], command_pid: int) -> OutputHolder | None:
    """Output that the keeper of this run has, or that the command still writes to; None where
    neither can be had.

    Args:
        host_dir: this host's part of the record.
        state: its ``host.json``.
        command_pid: the living command.
    """
    try:
        identity = state["output"]["shared"]
        pipes = state["output"]["pipes"]
    except (KeyError, TypeError):
        return None
    keeper = _find_keeper(identity)
    try:
        if keeper is not None:
            return _beside(*keeper)
        return _anew(host_dir, pipes, command_pid)
    except (OSError, ValueError):
        return None


def _find_keeper(identity: list[int]) -> tuple[int, list[str]] | None:
    """A living keeper of the shared memory of this device and inode: pid and arguments."""
    for pid in procfs.pids():
        words = procfs.command_line(pid)
        arguments = words[output.KEEPER_ARGUMENTS :]
        if words[:1] != [output.KEEPER_NAME] or not arguments:
            continue
        try:
            shared = os.stat(f"/proc/{pid}/fd/{int(arguments[0])}")
        except (OSError, ValueError):
            continue
        if [shared.st_dev, shared.st_ino] == identity:
            return pid, arguments
    return None


def _beside(pid: int, arguments: list[str]) -> OutputHolder:
    """Hold what a living keeper holds."""
    routes = []
    for word in arguments[1:]:
        _, source, log_number, log, _, beside = map(int, word.split(":"))
        routes.append(
            Route(_same(pid, source), _same(pid, log), log_number=log_number, beside=bool(beside)),
        )
    return OutputHolder(_same(pid, int(arguments[0])), routes, output.RECORDER)


def _anew(host_dir: Path, pipes: list[int], command_pid: int) -> OutputHolder | None:
    """The reading ends of the pipes that the command still has, with new shared memory."""
    routes = []
    for number in (1, 2):
        path = f"/proc/{command_pid}/fd/{number}"
        status = os.stat(path)
        if not stat.S_ISFIFO(status.st_mode) or status.st_ino not in pipes:
            continue
        log_number = pipes.index(status.st_ino)
        if all(route.log_number != log_number for route in routes):
            source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            routes.append(
                Route(source, output.open_log(host_dir, log_number), log_number=log_number)
            )
    if routes:
        return output.share(routes, output.chosen_log_mb(), output.RECORDER)
    return None


def _same(pid: int, number: int) -> int:
    """A descriptor of another process, here.

    Raises:
        OSError: the kernel does not let us.
    """
    path = f"/proc/{pid}/fd/{number}"
    if stat.S_ISCHR(os.stat(path).st_mode):
        # opening a pseudo-terminal's master would make another one
        return _copied(pid, number)
    if stat.S_ISFIFO(os.stat(path).st_mode):
        mode = os.O_RDONLY | os.O_NONBLOCK
    else:
        mode = os.O_RDWR
    return os.open(path, mode | os.O_CLOEXEC)


def _copied(pid: int, number: int) -> int:
    if sys.platform != "linux":
        raise OSError("not Linux")
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        copy = libc.syscall(_PIDFD_GETFD, process, number, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return copy
    finally:
        os.close(process)
