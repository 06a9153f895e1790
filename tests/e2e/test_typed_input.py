"""What is typed reaches the command: on the terminal itself, on a pseudo-terminal, and from the
live screen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_support import GPUTOP, environment
from pty_support import Terminal

from gputop_probes import ending

pytestmark = pytest.mark.e2e

ASKING = """
import getpass, sys
print("terminal", sys.stdin.isatty(), flush=True)
print("hello", input("name? "), flush=True)
print("secret of", len(getpass.getpass("secret: ")), flush=True)
breakpoint()
print("the rest?", flush=True)
print("rest", repr(sys.stdin.read()))
sys.exit(7)
"""
INTERRUPTED = """
try:
    input("name? ")
except KeyboardInterrupt:
    print("interrupted")
    raise SystemExit(5)
"""


@contextlib.contextmanager
def terminal(tmp_path: Path, source: str, *options: str) -> Iterator[Terminal]:
    (tmp_path / "ask.py").write_text(source)
    run_dir = tmp_path / "run"
    asked = Terminal(
        tmp_path, ["run", "--run-dir", str(run_dir), *options, sys.executable, "ask.py"]
    )
    try:
        yield asked
    finally:
        asked.close()
        for state in map(ending.read_state, (run_dir / "hosts").glob("*")):
            with contextlib.suppress(ProcessLookupError):
                if state.get("state") == "running":
                    os.kill(state["command_pid"], signal.SIGKILL)


def answer_all(asked: Terminal) -> None:
    """A name, a secret, a word to the debugger, then the end of the input."""
    asked.until(b"name? ")
    asked.press(b"Bob\r")
    asked.until(b"hello Bob")
    asked.until(b"secret: ")
    asked.press(b"abc\r")
    asked.until(b"secret of 3")
    asked.until(b"(Pdb)")
    asked.press(b"p 40 + 2\r")
    asked.until(b"\n42\r")  # not of the path of pytest's folder, as pytest-142
    asked.press(b"c\r")
    asked.until(b"\nthe rest?")
    asked.press(b"tail\r\x04")


@pytest.mark.parametrize(
    "options", [["--headless"], ["--headless", "--pty"]], ids=["terminal", "pty"]
)
def test_without_a_screen(tmp_path: Path, options: list[str]) -> None:
    with terminal(tmp_path, ASKING, *options) as asked:
        before = termios.tcgetattr(asked.fd)
        answer_all(asked)
        asked.until(b"rest 'tail\\n'")
        asked.until(b"gputop open")
        assert termios.tcgetattr(asked.fd) == before
        assert asked.exit_code() == 7
        assert b"terminal True" in asked.output
        assert b"abc" not in asked.output
        assert b"abc" not in b"".join(
            p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()
        )


@pytest.mark.parametrize(
    "options", [["--headless"], ["--headless", "--pty"]], ids=["terminal", "pty"]
)
def test_ctrl_c_at_a_question(tmp_path: Path, options: list[str]) -> None:
    with terminal(tmp_path, INTERRUPTED, *options) as asked:
        before = termios.tcgetattr(asked.fd)
        asked.until(b"name? ")
        asked.press(b"\x03")
        asked.until(b"gputop open")
        assert asked.exit_code() == 5
        assert b"interrupted" in asked.output
        assert termios.tcgetattr(asked.fd) == before


def test_from_the_live_screen(tmp_path: Path) -> None:
    """The screen says that the command waits, hands the terminal over, and comes back."""
    with terminal(tmp_path, ASKING) as asked:
        asked.until(b"waits for input")
        asked.press(b"I")
        asked.until(b"Ctrl-] brings")
        seen = len(asked.output)
        asked.press(b"Bob\r")
        asked.until(b"hello Bob")
        asked.press(b"\x1d")
        asked.until_after(seen, b"waits for input")
        seen = len(asked.output)
        asked.press(b"I")
        asked.until_after(seen, b"secret: ")
        asked.press(b"abc\r")
        asked.until(b"secret of 3")
        asked.until(b"(Pdb)")
        asked.press(b"c\r")
        asked.until(b"\nthe rest?")
        asked.press(b"\x04")
        asked.until_after(seen, b"exit 7")
        asked.press(b"q")
        assert asked.exit_code() == 7
        assert (next((tmp_path / "run").glob("hosts/*/output.log")).read_bytes()).count(
            b"hello Bob\n"
        ) == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(tmp_path: Path, closed: str) -> None:
    source = (
        "import os, sys; open('ran', 'w').write(str(sys.stdin is None)); print('out'); sys.exit(3)"
    )
    words = [*GPUTOP, "run", "--run-dir", "run", "--", sys.executable, "-c", source]
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *words]
    done = subprocess.run(
        shell, cwd=tmp_path, env=environment(tmp_path), capture_output=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "ran").read_text() == str("<&-" in closed)
    assert b"Traceback" not in done.stderr
    log = b"".join(path.read_bytes() for path in (tmp_path / "run").glob("hosts/*/output.log"))
    assert log == b"out\n"


def test_words_of_gputop_begin_a_line(tmp_path: Path) -> None:
    source = "import sys; sys.stderr.write('no newline')"
    words = [*GPUTOP, "run", "--headless", sys.executable, "-c", source]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(tmp_path), capture_output=True, check=False
    )
    assert done.stderr.splitlines()[0] == b"no newline"


def test_reading_in_the_background_does_not_take_the_shells_input(tmp_path: Path) -> None:
    """A background job that reads the terminal is stopped by it; there is nobody to stop here, so
    it finds the end.
    """
    source = "import sys; print('read', repr(sys.stdin.read()), flush=True)"
    (tmp_path / "ask.py").write_text(source)
    command = " ".join([*GPUTOP, "run", "--headless", sys.executable, "ask.py"])
    shell = Terminal(tmp_path, ["-i"], program=["bash", "--norc"])
    try:
        shell.press(f"{command} &\r".encode())
        shell.until(b"read ''")
        shell.press(b"echo still-$((40 + 2))\r")
        shell.until(b"still-42")
    finally:
        os.kill(shell.pid, signal.SIGHUP)
        shell.close()
