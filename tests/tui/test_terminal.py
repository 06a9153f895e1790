"""The app in a real terminal: signals restore it, and the way out says what happened."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from tui_support import write_run

APP = """
import pathlib, sys
from gputop.app import Source, run_app
result = run_app(Source(pathlib.Path(sys.argv[1]), sys.argv[2]))
print("RESULT", result.action, result.signal)
"""
LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"
pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("terminal") / "r", steps=200)


def start(run_dir, mode="replay", columns=100, rows=30):
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        os.execve(sys.executable, [sys.executable, "-c", APP, str(run_dir), mode], environment)
    return pid, fd


def read_until(fd, marker, timeout_s=60.0):
    """What was written up to ``marker``; up to the end of the program where ``marker`` is None."""
    seen, deadline = b"", time.monotonic() + timeout_s
    while time.monotonic() < deadline and (marker is None or marker not in seen):
        if not select.select([fd], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(fd, 1 << 16)
        except OSError:
            return seen
        if not data:
            return seen
        seen += data
    assert marker is not None and marker in seen, seen[-300:]
    return seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal_and_is_told(run_dir, number):
    pid, fd = start(run_dir)
    try:
        read_until(fd, b"Findings")
        os.kill(pid, number)
        rest = read_until(fd, None)
        assert LEFT_ALTERNATE_SCREEN in rest and b"\x1b[?1000l" in rest
        assert f"RESULT quit {int(number)}".encode() in rest
    finally:
        os.waitpid(pid, 0)
        os.close(fd)


def test_resizing_quickly_and_quitting(run_dir):
    pid, fd = start(run_dir)
    try:
        read_until(fd, b"Findings")
        for columns in range(40, 220, 12):
            fcntl.ioctl(
                fd, termios.TIOCSWINSZ, struct.pack("HHHH", 10 + columns // 5, columns, 0, 0)
            )
            os.kill(pid, signal.SIGWINCH)
        os.write(fd, b"q")
        rest = read_until(fd, None)
        assert b"RESULT quit None" in rest and b"Traceback" not in rest
    finally:
        os.waitpid(pid, 0)
        os.close(fd)


def test_no_terminal_is_refused(run_dir):
    done = subprocess.run(
        [sys.executable, "-c", APP, str(run_dir), "replay"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "needs a terminal" in done.stderr


def test_importing_the_app_package_loads_no_textual():
    assert (
        loaded("gputop.app, gputop.actions, gputop.palette", ("textual", "numpy", "pydantic"))
        == "[]"
    )


def test_the_first_frame_needs_no_numpy_and_no_pydantic():
    assert loaded("gputop.app.application", ("numpy", "pydantic", "plotext")) == "[]"


def loaded(imports: str, names: tuple[str, ...]) -> str:
    """Which of ``names`` a fresh interpreter has after importing ``imports``."""
    code = f"import sys, {imports}; print([m for m in {names} if m in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


CATALOG = "from gputop.app.catalog import run_catalog; run_catalog()"


def test_a_screen_without_a_run_keeps_to_ascii_and_16_colours():
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = {**os.environ, "TERM": "xterm-16color", "GPUTOP_ASCII": "1"}
        environment.pop("COLORTERM", None)
        os.execve(sys.executable, [sys.executable, "-c", CATALOG], environment)
    drawn = read_until(fd, b" estimate")
    os.write(fd, b"q")
    drawn += read_until(fd, None)
    os.waitpid(pid, 0)
    assert drawn.isascii() and b"38;2;" not in drawn and b"48;2;" not in drawn
