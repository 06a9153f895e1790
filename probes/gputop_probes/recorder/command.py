"""Starts the training command in its own session and learns how it ended."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import termios
from pathlib import Path
from typing import NoReturn

from gputop_probes import procfs
from gputop_probes.errors import StartError
from gputop_probes.fate import Fate
from gputop_probes.inherited import Inherited
from gputop_probes.streams import Streams


class WatchedCommand:
    """A started command, ours (``child=True``) or taken over from a recorder that is gone."""

    def __init__(
        self,
        pid: int,
        pgid: int,
        start_ticks: int = 0,
        *,
        child: bool = True,
        fate: Fate | None = None,
        followed: bool = False,
    ):
        self.pid = pid
        self.pgid = pgid
        self.start_ticks = start_ticks
        self.pidfd = _pidfd(pid)
        self.wait_status: int | None = None
        self.ended = False
        self.followed = followed
        """Whether it began without gputop, so that the run may end before it, see ``end_run``."""
        self.said_exit_code: int | None = None
        self._child = child
        self._fate = fate

    def poll(self) -> bool:
        """Whether the command has ended; ``wait_status`` then tells how, or None: not learnt."""
        if not self.ended:
            if self._child:
                self.ended = self._poll_child()
            else:
                self.ended = not procfs.alive(self.pid, self.start_ticks)
        return self.ended

    def end_run(self, exit_code: int) -> None:
        """Take the command for ended although its process lives on."""
        self.ended, self.said_exit_code = True, exit_code

    def exit_code(self) -> int | None:
        """Its own exit code, 128+n after signal n, or what was said of it; None if nobody knows."""
        if self.wait_status is None:
            return self.said_exit_code
        return exit_code(self.wait_status)

    def _poll_child(self) -> bool:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return not procfs.alive(self.pid)
        if pid == 0:
            return False
        self.wait_status = status
        if self._fate is not None:
            self._fate.note_end(status)
        return True


def start(
    words: list[str],
    environment: dict[str, str],
    streams: Streams,
    inherited: Inherited,
    fate: Fate,
) -> WatchedCommand:
    """Start the command; it leads a new session and process group.

    Args:
        words: the command.
        environment: of the command.
        streams: its standard streams.
        inherited: what it is to find as in a bare start; its signals are held back until then.
        fate: where its process, and how it ended, are noted for the front.

    Raises:
        StartError: with the exit code that a shell would give, 127 or 126.
    """
    reading, writing = os.pipe()
    fate.note_forking()
    try:
        pid = os.fork()
    except OSError:
        fate.note_not_forked()
        raise
    if pid == 0:
        fate.note_self()
        _become(words, environment, streams=streams, failure=writing, inherited=inherited)
    failure = _failure(reading, writing)
    if failure:
        fate.note_not_forked()
        os.waitpid(pid, 0)
        number = int(failure)
        raise start_error(words[0], OSError(number, os.strerror(number)))
    stat = procfs.stat(pid)
    return WatchedCommand(pid, pid, stat.start_ticks if stat else 0, fate=fate)


def _failure(reading: int, writing: int) -> bytes:
    """Failure that the forked process reports. Its end without a word: the program has taken the
    process over.

    From the fork on nothing of ours may look like a command that was not started.
    """
    try:
        os.close(writing)
        failure = os.read(reading, 16)
        os.close(reading)
    except OSError:
        return b""
    return failure


def _become(
    words: list[str],
    environment: dict[str, str],
    streams: Streams,
    failure: int,
    inherited: Inherited,
) -> NoReturn:
    """Turn this forked process into the command. Python's own descriptors close by themselves."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        if streams.terminal >= 0:
            fcntl.ioctl(streams.terminal, termios.TIOCSCTTY, 0)
        _take_streams(streams)
        inherited.give_back()
        os.execvpe(words[0], words, environment)
    except OSError as error:
        os.write(failure, str(error.errno or errno.EINVAL).encode())
    except ValueError:  # a zero byte in an argument
        os.write(failure, str(errno.EINVAL).encode())
    finally:
        os._exit(127)


def _take_streams(streams: Streams) -> None:
    """Put the streams at 0, 1 and 2; one that the command is to be without stays closed."""
    wanted = (streams.stdin, streams.stdout, streams.stderr)
    above = [
        fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 3) if stream >= 0 else -1 for stream in wanted
    ]
    for number, stream in enumerate(above):
        if stream >= 0:
            os.dup2(stream, number)
        else:
            os.close(number)


def start_error(word: str, error: OSError) -> StartError:
    """Reason why ``word`` could not be started, in one line, with a shell's exit code."""
    if not word:
        return StartError("the command's first word is empty: is a variable not set?", 127)
    if error.errno == errno.ENOENT:
        if "/" in word and Path(word).exists():
            return StartError(
                f"cannot start {word}: the interpreter named in its first line does not exist", 127
            )
        return StartError(f"{word}: command not found", 127)
    if error.errno == errno.ENOEXEC:
        return StartError(f"{word} is not executable: it is no program and has no `#!` line", 126)
    if error.errno in (errno.EACCES, errno.EISDIR, errno.EPERM):
        if word.endswith(".py"):
            return StartError(
                f"{word} is not executable: did you mean `gputop run python {word}`?", 126
            )
        return StartError(f"{word} is not executable: {os.strerror(error.errno)}", 126)
    return StartError(f"cannot start {word}: {error.strerror}", 126)


def exit_code(wait_status: int) -> int:
    """The command's own exit code, 128+n after signal n."""
    if os.WIFSIGNALED(wait_status):
        return 128 + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)


def death_signal(wait_status: int) -> int | None:
    """The signal that ended the command, if one did."""
    if os.WIFSIGNALED(wait_status):
        return os.WTERMSIG(wait_status)
    return None


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
