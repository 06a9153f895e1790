"""Signals reach the command from the first instruction on, and gputop ends as the command does.
Real signals.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_support import GPUTOP, environment
from pty_support import Terminal
from recorder_support import until

from gputop_probes import procfs

pytestmark = pytest.mark.e2e

STOPPED = (130, -signal.SIGINT, 1)
"""1: an interpreter that was still loading its modules, gputop's or the command's, as in a bare
start.
"""
RESTORED = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?2004l")
"""Normal screen, cursor, mouse, pasting."""
SLEEPER = "import time; print('up', flush=True); time.sleep(45)"


def living(token: str) -> list[int]:
    """Processes of the command that has ``token`` among its arguments, gputop's own left out."""
    found = []
    for pid in procfs.pids():
        words = procfs.command_line(pid)
        if token in words and "gputop" not in " ".join(words[:3]) and procfs.alive(pid):
            found.append(pid)
    return found


@pytest.fixture
def token(tmp_path: Path) -> Iterator[str]:
    """An argument that only this test's command has; what bears it at the end is killed."""
    word = f"token-{tmp_path.name}-{os.getpid()}"
    yield word
    for pid in living(word):
        os.kill(pid, signal.SIGKILL)


def answer_dialog(terminal: Terminal, seconds: float = 30) -> int:
    """Stop the training where the screen asks what to do, and wait for gputop's end."""
    deadline = time.monotonic() + seconds
    asked = False
    while not terminal.ended():
        assert time.monotonic() < deadline, terminal.output[-2000:]
        if not asked and b"Leave" in terminal.output:
            terminal.press(b"s")
            asked = True
        time.sleep(0.02)
    return terminal.exit_code()


@pytest.mark.parametrize("delay_s", [0.05, 0.15, 0.3, 0.5, 0.8, 1.2])
def test_ctrl_c_soon_after_the_start_of_the_live_screen(
    tmp_path: Path, token: str, delay_s: float
) -> None:
    terminal = Terminal(tmp_path, ["run", sys.executable, "-c", SLEEPER, token])
    try:
        time.sleep(delay_s)
        terminal.press(b"\x03")
        code = answer_dialog(terminal)
    finally:
        terminal.close()
    assert living(token) == []
    assert code in STOPPED


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_as_soon_as_the_command_is_there(tmp_path: Path, token: str, number: int) -> None:
    """Headless: the window between the command's start and the front's handlers was 10
    ms and more. An interpreter that SIGINT meets in its own start ends with 1, as bare.
    """
    command = [*GPUTOP, "run", "--headless", sys.executable, "-c", SLEEPER, token]
    told = tmp_path / "stderr"
    with told.open("wb") as stderr:
        front = subprocess.Popen(
            command, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=stderr
        )
        until(lambda: living(token), 30)
        front.send_signal(number)
        code = front.wait(20)
    assert living(token) == []
    starting = number == signal.SIGINT and "init_import_site" in told.read_text()
    assert code == 1 if starting else code in (128 + number, -number)


def live(tmp_path: Path, *command: str, program: list[str] = GPUTOP) -> Terminal:
    """The live screen over a command that has printed ``up``."""
    terminal = Terminal(tmp_path, ["run", "--run-dir", str(tmp_path / "run"), *command], program)
    try:
        terminal.until(b"up")
        terminal.until(b"Findings")
    except BaseException:
        terminal.close()
        raise
    return terminal


def is_restored(terminal: Terminal) -> bool:
    """Whether the terminal is as a shell expects it after what was drawn so far."""
    drawn = terminal.output
    off = all(
        drawn.rfind(word) > drawn.rfind(word[:-1] + (b"h" if word.endswith(b"l") else b"l"))
        for word in RESTORED
    )
    flags = termios.tcgetattr(terminal.fd)[3]
    return off and bool(flags & termios.ECHO) and bool(flags & termios.ICANON)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_to_the_live_screen_ends_the_command(
    tmp_path: Path, token: str, number: int
) -> None:
    terminal = live(tmp_path, sys.executable, "-c", SLEEPER, token)
    try:
        os.kill(terminal.pid, number)
        assert terminal.exit_code(30) == 128 + number
        assert is_restored(terminal)
    finally:
        terminal.close()
    assert living(token) == []


PAIRS = [
    (first, second, gap_s)
    for first, second in (
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGINT),
    )
    for gap_s in (0.0005, 0.002, 0.008)
]
"""As a service manager and ``timeout`` may send them: the second comes within the first's
handler.
"""


@pytest.mark.parametrize(("first", "second", "gap_s"), PAIRS)
def test_two_signals_at_once_end_the_command(
    tmp_path: Path, token: str, first: int, second: int, gap_s: float
) -> None:
    command = [*GPUTOP, "run", "--headless", sys.executable, "-c", SLEEPER, token]
    output = tmp_path / "output"
    with output.open("wb") as told:
        front = subprocess.Popen(command, env=environment(tmp_path), stdout=told, stderr=told)
        until(lambda: "up" in output.read_text(), 30)
        front.send_signal(first)
        time.sleep(gap_s)
        front.send_signal(second)
        code = front.wait(20)
    assert living(token) == []
    assert code in (130, 143, -signal.SIGINT, -signal.SIGTERM), output.read_text()


@pytest.mark.parametrize("gap_s", [0.0005, 0.002, 0.008])
def test_two_signals_at_once_to_the_live_screen_end_the_command(
    tmp_path: Path, token: str, gap_s: float
) -> None:
    terminal = live(tmp_path, sys.executable, "-c", SLEEPER, token)
    try:
        os.kill(terminal.pid, signal.SIGTERM)
        time.sleep(gap_s)
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.exit_code(30) == 128 + signal.SIGTERM
        assert is_restored(terminal)
    finally:
        terminal.close()
    assert living(token) == []


def test_a_command_that_saves_on_sigterm_keeps_its_exit_code(tmp_path: Path, token: str) -> None:
    """``timeout 1h gputop run ...`` in a terminal: the command has its time to save."""
    code = (
        "import signal, sys, time\n"
        "def save(*_): time.sleep(1); open('saved', 'w'); sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('up', flush=True)\ntime.sleep(45)"
    )
    terminal = live(tmp_path, sys.executable, "-c", code, token)
    try:
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.exit_code(30) == 9
        assert (tmp_path / "saved").exists()
    finally:
        terminal.close()


def test_a_hangup_leaves_the_command_running(tmp_path: Path, token: str) -> None:
    terminal = live(tmp_path, sys.executable, "-c", SLEEPER, token)
    try:
        os.kill(terminal.pid, signal.SIGHUP)
        assert terminal.exit_code(30) == 128 + signal.SIGHUP
        assert is_restored(terminal)
        assert len(living(token)) == 1
    finally:
        terminal.close()


IN_A_SESSION_OF_ITS_OWN = "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])"
WITHOUT_HANGUPS = (
    "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize("start", [IN_A_SESSION_OF_ITS_OWN, WITHOUT_HANGUPS])
def test_a_terminal_that_vanishes_without_a_signal_is_left(
    tmp_path: Path, token: str, start: str
) -> None:
    """The screen ends as after SIGHUP, and the command goes on; a dead terminal is not read on and
    on.
    """
    master, slave = pty.openpty()
    words = [*GPUTOP, "run", "--run-dir", str(tmp_path / "run"), sys.executable, "-c", SLEEPER]
    front = subprocess.Popen(
        [sys.executable, "-c", start, *words, token],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(tmp_path, TERM="xterm-256color"),
        cwd=tmp_path,
    )
    os.close(slave)
    drawn = b""
    while b"Findings" not in drawn:
        drawn += os.read(master, 65536)
    os.close(master)
    assert front.wait(60) == 128 + signal.SIGHUP
    assert len(living(token)) == 1


CRASHING = """
import sys
from gputop.screens.main import MainScreen
{damage}
from gputop.cli import main
sys.exit(main(sys.argv[1:]))
"""
IN_THE_APP = "MainScreen.receive = lambda *_: 1 / 0"
IN_A_WORKER = """
shown = MainScreen.receive
def receive(self, *arguments):
    shown(self, *arguments)
    self.run_worker(lambda: 1 / 0, thread=True)
MainScreen.receive = receive
"""


@pytest.mark.parametrize("damage", [IN_THE_APP, IN_A_WORKER], ids=["app", "worker"])
def test_a_crash_of_the_screen_gives_the_terminal_back_and_goes_on(
    tmp_path: Path, token: str, damage: str
) -> None:
    program = [sys.executable, "-c", CRASHING.format(damage=damage)]
    code = (
        "import time; print('up', flush=True); time.sleep(4); print('trained'); raise SystemExit(5)"
    )
    terminal = Terminal(
        tmp_path,
        ["run", "--run-dir", str(tmp_path / "run"), sys.executable, "-c", code, token],
        program,
    )
    try:
        assert terminal.exit_code(60) == 5
        assert is_restored(terminal)
        assert b"ZeroDivisionError" in terminal.output and b"going on without" in terminal.output
        assert b"trained" in terminal.output
        assert b"Traceback" not in terminal.output
        assert "ZeroDivisionError" in (tmp_path / "run" / "screen-error.log").read_text()
    finally:
        terminal.close()
