"""The three standard streams of a command: what they are given, and where its output goes."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gputop_probes.descriptors import closed_at_start
from gputop_probes.output import OutputHolder, Route, chosen_log_mb, open_log, open_pipe, share

if TYPE_CHECKING:
    from gputop_probes.run_spec import RunSpec


class Streams(NamedTuple):
    """Descriptors for the command's standard streams; -1 for one that it is to be without."""

    stdin: int
    stdout: int
    stderr: int
    terminal: int = -1
    """One of them, that is to be the command's controlling terminal."""

    def close(self) -> None:
        """Let go of what only the command needs."""
        for descriptor in {self.stdin, self.stdout, self.stderr}:
            if descriptor >= 0:
                os.close(descriptor)


class Console(NamedTuple):
    """Our end of a pseudo-terminal that the command has."""

    master: int
    path: str
    """Of the command's end."""


class Opened(NamedTuple):
    """What is made for one command before it is started."""

    streams: Streams
    output: OutputHolder
    console: Console | None


def open_streams(host_dir: Path, spec: RunSpec, terminal: tuple[int, int] | None) -> Opened:
    """Open logs, pipes and pseudo-terminal of a command.

    Args:
        host_dir: where the logs go.
        spec: what is run.
        terminal: columns and lines of the terminal that shows the output.

    Raises:
        OSError: they cannot be made.
    """
    opened: list[int] = []
    try:
        return _open(host_dir, spec, terminal or (80, 24), opened)
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise


def separate_stderr(spec: RunSpec) -> bool:
    """Whether stdout and stderr must be told apart: only where we pass them on separately."""
    if spec.separate_stderr is not None:
        return spec.separate_stderr
    if not spec.headless or spec.pty:
        return False
    try:
        return not os.path.samestat(os.fstat(1), os.fstat(2))
    except OSError:
        return True


def is_terminal(descriptor: int) -> bool:
    """Whether it is open and a terminal."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _open(host_dir: Path, spec: RunSpec, size: tuple[int, int], opened: list[int]) -> Opened:
    def note(*descriptors: int) -> None:
        opened.extend(descriptor for descriptor in descriptors if descriptor >= 0)

    log_mb = chosen_log_mb() if spec.log_mb is None else spec.log_mb
    log = open_log(host_dir, 0)
    note(log)
    console, slave = None, -1
    if spec.pty or (not spec.headless and is_terminal(0)):
        master, slave = _open_terminal(size)
        note(master, slave)
        console = Console(master, os.ttyname(slave))
    stdin = slave if slave >= 0 and is_terminal(0) else _stdin()
    note(stdin if stdin != slave else -1)
    if spec.pty:
        assert console is not None
        routes = [Route(console.master, log, _target(spec, 1))]
        note(routes[0].target)
        return Opened(Streams(stdin, slave, slave, slave), share(routes, log_mb), console)
    reading, writing = open_pipe()
    routes = [Route(reading, log, _target(spec, 1))]
    note(reading, writing, routes[0].target)
    errors = writing
    if separate_stderr(spec):
        reading, errors = open_pipe()
        routes.append(Route(reading, open_log(host_dir, 1), _target(spec, 2), log_number=1))
        note(reading, errors, routes[1].log, routes[1].target)
    if console is not None:
        routes.append(Route(console.master, log, beside=True))
    return Opened(Streams(stdin, writing, errors), share(routes, log_mb), console)


def _target(spec: RunSpec, number: int) -> int:
    """Where output goes on to, an own descriptor; -1: not shown, or a screen shows the log."""
    if spec.output_to_stderr:
        number = 2
    if not spec.headless or spec.quiet or number in closed_at_start:
        return -1
    try:
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return -1


def _stdin() -> int:
    """The command's standard input: ours, unless a shell would stop a background reader."""
    if 0 in closed_at_start:
        return -1
    if not (is_terminal(0) and _in_background()):
        try:
            return fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
        except OSError:
            pass
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _in_background() -> bool:
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # no terminal, or not ours
        return False


def _open_terminal(size: tuple[int, int]) -> tuple[int, int]:
    master, slave = os.openpty()
    os.set_blocking(master, False)
    mode = termios.tcgetattr(slave)
    mode[1] &= ~termios.OPOST  # line ends reach the log as the command wrote them
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    set_size(master, *size)
    return master, slave


def set_size(terminal: int, columns: int, lines: int) -> None:
    """Tell a terminal, and whoever runs on it, how large it is."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
