"""What is typed on our terminal, passed on to a command's; and who waits for it."""

from __future__ import annotations

import os
import select
import termios
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gputop_probes import procfs
from gputop_probes.streams import Console, set_size

LEAVE_KEY = b"\x1d"
"""Ctrl-]"""
_OURS = 0
_POLL_MS = 200
_READ = {"x86_64": 0, "aarch64": 63, "riscv64": 63, "ppc64le": 3, "s390x": 3}
"""The number of the system call ``read``."""


class Keys(NamedTuple):
    """What keys do that a terminal turns into signals: the command is in no session of ours."""

    interrupt: Callable[[], object]
    suspend: Callable[[], object]


class Keyboard:
    """While entered, our terminal is raw, and what is typed goes to the command's."""

    def __init__(self, console: Console, pgid: int, keys: Keys, leave_key: bytes = b""):
        """Enter it to begin.

        Args:
            console: our end of the command's terminal.
            pgid: the command's process group.
            keys: what Ctrl-C and Ctrl-Z do.
            leave_key: ends it when typed; empty for none.
        """
        self.left = False
        """Whether ``leave_key`` was typed, or our terminal has gone."""
        self._console = console
        self._pgid = pgid
        self._keys = keys
        self._leave_key = leave_key
        self._before: list[Any] | None = None
        self._size: os.terminal_size | None = None
        self._poller = select.poll()
        self._poller.register(_OURS, select.POLLIN)

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(_OURS)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def turn(self, milliseconds: int = _POLL_MS) -> None:
        """Pass on what is typed within that time."""
        if not in_foreground():
            time.sleep(milliseconds / 1000)
            return
        try:
            self._make_raw()
            self._pass_size_on()
            if self._poller.poll(milliseconds):
                typed = os.read(_OURS, 4096)
                self.left = not typed
                self._take(typed)
        except (OSError, termios.error):
            self.left = True

    def _take(self, typed: bytes) -> None:
        if self._leave_key and self._leave_key in typed:
            typed = typed.partition(self._leave_key)[0]
            self.left = True
        special = self._signal_keys()
        plain = b""
        for key in (typed[i : i + 1] for i in range(len(typed))):
            if key in special:
                self._write(plain)
                plain = b""
                special[key]()
            else:
                plain += key
        self._write(plain)

    def _signal_keys(self) -> dict[bytes, Callable[[], object]]:
        """Keys that the command's terminal would turn into signals for the command itself."""
        mode = termios.tcgetattr(self._console.master)
        if not mode[3] & termios.ISIG or self._foreground() not in (0, self._pgid):
            return {}
        return {mode[6][termios.VINTR]: self._keys.interrupt, mode[6][termios.VSUSP]: self._suspend}

    def _foreground(self) -> int:
        try:
            return os.tcgetpgrp(self._console.master)
        except OSError:
            return 0

    def _suspend(self) -> None:
        self._restore()
        self._keys.suspend()

    def _write(self, data: bytes) -> None:
        """What nobody reads is lost, as on a terminal whose line is full."""
        writable = select.poll()
        writable.register(self._console.master, select.POLLOUT)
        while data and writable.poll(_POLL_MS):
            try:
                data = data[os.write(self._console.master, data[:1024]) :]
            except BlockingIOError:
                return

    def _make_raw(self) -> None:
        """Each key at once and as it is; output stays as it was. Done again after a shell had the
        terminal.
        """
        mode = termios.tcgetattr(_OURS)
        if not mode[3] & termios.ICANON:
            return
        mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON | termios.ISTRIP)
        mode[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG | termios.IEXTEN)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(_OURS, termios.TCSANOW, mode)

    def _pass_size_on(self) -> None:
        size = os.get_terminal_size(_OURS)
        if size != self._size:
            self._size = size
            set_size(self._console.master, size.columns, size.lines)

    def _restore(self) -> None:
        if self._before is not None:
            try:
                termios.tcsetattr(_OURS, termios.TCSADRAIN, self._before)
            except termios.error:  # closed
                pass


class TypedThrough:
    """A keyboard in a thread, for as long as the command runs."""

    def __init__(self, keyboard: Keyboard):
        self._keyboard = keyboard
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keyboard", daemon=True)

    def __enter__(self) -> TypedThrough:
        self._keyboard.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2.0)
        self._keyboard.__exit__()

    def _run(self) -> None:
        while not self._over.is_set() and not self._keyboard.left:
            self._keyboard.turn()


def in_foreground() -> bool:
    """Whether our terminal is ours now; a background process that touches it would be stopped."""
    try:
        return os.tcgetpgrp(_OURS) == os.getpgrp()
    except OSError:
        return False


def waits_for_input(console: Console) -> int | None:
    """The process whose main thread waits in a read of the command's terminal, or None."""
    for pid in procfs.pids():
        try:
            if os.readlink(f"/proc/{pid}/fd/0") != console.path:
                continue
        except OSError:
            continue
        if _reads(pid, console.path):
            return pid
    return None


def _reads(pid: int, path: str) -> bool:
    words = (procfs.read_bytes(f"/proc/{pid}/syscall") or b"").split()
    if not words:  # not ours to look at
        return (procfs.read_bytes(f"/proc/{pid}/wchan") or b"").strip() == b"n_tty_read"
    try:
        number, descriptor = int(words[0]), int(words[1], 16)
        return (
            number == _READ.get(os.uname().machine)
            and os.readlink(f"/proc/{pid}/fd/{descriptor}") == path
        )
    except (OSError, ValueError, IndexError):  # it runs
        return False
