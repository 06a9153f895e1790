"""Starts the training command in its own session and learns how it ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

from gputop_probes import procfs
from gputop_probes.errors import StartError


class Streams(NamedTuple):
    """Descriptors for the command's standard streams."""

    stdin: int
    stdout: int
    stderr: int


class Command:
    """A started command, ours (``child=True``) or taken over from a recorder that is gone."""

    def __init__(self, pid: int, pgid: int, start_ticks: int = 0, child: bool = True):
        self.pid = pid
        self.pgid = pgid
        self.start_ticks = start_ticks
        self.pidfd = _pidfd(pid)
        self.wait_status: int | None = None
        self.ended = False
        self._child = child

    def poll(self) -> bool:
        """Whether the command has ended; ``wait_status`` then tells how, or is None if nobody could learn it."""
        if not self.ended:
            self.ended = self._poll_child() if self._child else not procfs.alive(self.pid, self.start_ticks)
        return self.ended

    def _poll_child(self) -> bool:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return not procfs.alive(self.pid)
        if pid == 0:
            return False
        self.wait_status = status
        return True


def start(words: list[str], environment: dict[str, str], cwd: str | None, streams: Streams) -> Command:
    """Start the command; it leads a new session and process group.

    Raises:
        StartError: with the exit code that a shell would give, 127 or 126.
    """
    try:
        process = subprocess.Popen(
            words,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise start_error(words[0], error) from None
    except ValueError as error:  # a zero byte in an argument
        raise StartError(f"cannot start {words[0]!r}: {error}") from None
    pid = process.pid
    process.returncode = 0  # reaped by Command; keeps Popen's destructor from doing it
    found = procfs.stat(pid)
    return Command(pid, pid, found.start_ticks if found else 0)


def start_error(word: str, error: OSError) -> StartError:
    """What went wrong with starting ``word``, in one line, with a shell's exit code."""
    if error.errno == errno.ENOENT:
        if "/" in word and Path(word).exists():
            return StartError(f"cannot start {word}: the interpreter named in its first line does not exist", 127)
        return StartError(f"{word}: command not found", 127)
    if error.errno == errno.ENOEXEC:
        return StartError(f"{word} is not executable: it is no program and has no `#!` line", 126)
    if error.errno in (errno.EACCES, errno.EISDIR, errno.EPERM):
        if word.endswith(".py"):
            return StartError(f"{word} is not executable: did you mean `gputop run python {word}`?", 126)
        return StartError(f"{word} is not executable: {os.strerror(error.errno)}", 126)
    return StartError(f"cannot start {word}: {error.strerror}", 126)


def exit_code(wait_status: int) -> int:
    """The command's own exit code, 128+n after signal n."""
    if os.WIFSIGNALED(wait_status):
        return 128 + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)


def death_signal(wait_status: int) -> int | None:
    """The signal that ended the command, if one did."""
    return os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else None


def unblock_signals() -> None:
    """An empty signal mask, as a shell gives to what it starts."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
