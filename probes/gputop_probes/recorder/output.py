"""Where the command's output goes: a file, so that nobody's death can close it under the training.

With ``--pty`` a pseudo-terminal is put before the file. It looks like a terminal to the command, and it closes when the
recorder dies.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from pathlib import Path
from typing import TYPE_CHECKING

from gputop_probes.recorder.command import Streams

if TYPE_CHECKING:
    from gputop_probes.launch import Plan
    from gputop_probes.recorder.loop import Recorder

_READ_BYTES = 65536


class Output:
    """The command's streams, and what the recorder keeps of them."""

    def __init__(self, streams: Streams, logs: list[int], to_close: list[int], pty_master: int | None = None):
        self.streams = streams
        self._logs = logs
        self._to_close = to_close
        self._pty = pty_master
        self.lost_bytes = 0

    def after_start(self) -> None:
        """Close what only the command needs."""
        for descriptor in self._to_close:
            os.close(descriptor)

    def attach_to(self, recorder: Recorder) -> None:
        """Keep the reserve filled, and copy from the pseudo-terminal if there is one."""
        for log in self._logs:
            tend_log(recorder, log)
        if self._pty is not None:
            master = self._pty
            os.set_blocking(master, False)
            recorder.watch(master, lambda: self._copy(recorder))
            recorder.farewells.insert(0, ("pty", lambda: self._copy(recorder)))

    def _copy(self, recorder: Recorder) -> None:
        """Move what the command wrote to the log; without readers its writes would block."""
        while self._pty is not None:
            try:
                data = os.read(self._pty, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:  # EIO: the last process has closed its side
                data = b""
            if not data:
                recorder.forget(self._pty)
                os.close(self._pty)
                self._pty = None
                return
            try:
                os.write(self._logs[0], data)
            except OSError:
                self.lost_bytes += len(data)


def tend_log(recorder: Recorder, log: int) -> None:
    """Keep a log's reserve filled while the command runs, and give the rest back at its end."""
    from gputop_probes.recorder.reserve import LogReserve

    reserve = LogReserve(log)
    recorder.chores.append(("log reserve", reserve.tend))
    recorder.at_end.append(("log reserve", reserve.release))


def open_output(host_dir: Path, plan: Plan) -> Output:
    """Open the log files and the command's standard input.

    Raises:
        OSError: they cannot be made.
    """
    stdin = os.dup(0) if plan.inherit_stdin else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    log = _open_log(host_dir / "output.log")
    if plan.spec.pty:
        return _open_pty(stdin, log, plan.terminal)
    if not plan.separate_stderr:
        return Output(Streams(stdin, log, log), [log], [stdin])
    errors = _open_log(host_dir / "stderr.log")
    return Output(Streams(stdin, log, errors), [log, errors], [stdin])


def _open_log(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _open_pty(stdin: int, log: int, terminal: tuple[int, int] | None) -> Output:
    master, slave = os.openpty()
    mode = termios.tcgetattr(slave)
    mode[1] &= ~termios.OPOST  # line ends reach the log as the command wrote them
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    columns, lines = terminal or (80, 24)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    return Output(Streams(stdin, slave, slave), [log], [stdin, slave], master)
