"""gputop on a pseudo-terminal, driven as a person at the keyboard would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from e2e_support import GPUTOP, environment

LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"


class Terminal:
    """gputop, or another ``program``, on a pseudo-terminal of 120x40."""

    def __init__(self, tmp_path: Path, words: list[str], program: Sequence[str] = GPUTOP):
        self.output = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(tmp_path)
            os.execvpe(program[0], [*program, *words], environment(tmp_path, TERM="xterm-256color"))
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def until(self, text: bytes, seconds: float = 60) -> None:
        """Read until ``text`` was drawn."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < deadline, self.output[-3000:]
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.fd, 65536)
                except OSError:
                    raise AssertionError(
                        f"the terminal closed before {text!r}: {self.output[-3000:]!r}"
                    ) from None

    def until_after(self, position: int, text: bytes, seconds: float = 60) -> None:
        """Read until ``text`` was drawn once more, beyond ``position`` bytes of what was drawn so
        far.
        """
        before, self.output = self.output[:position], self.output[position:]
        try:
            self.until(text, seconds)
        finally:
            self.output = before + self.output

    def press(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def exit_code(self, seconds: float = 60) -> int:
        """Read to the end and return the exit code of the front process."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.fd, 65536)
                except OSError:
                    time.sleep(0.05)
        raise AssertionError("gputop did not end")

    def ended(self) -> bool:
        """Whether the front has ended; reads what it draws meanwhile."""
        if select.select([self.fd], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                self.output += os.read(self.fd, 65536)
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def close(self) -> None:
        """Kill the front where it is still there."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.fd)
