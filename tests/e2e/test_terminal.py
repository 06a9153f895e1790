"""The live screen on a real pseudo-terminal, killed and closed under a real training."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_support import training
from pty_support import LEAVE_ALTERNATE_SCREEN, Terminal
from recorder_support import until

from gputop_probes.record.reader import HostFiles, RunRecord

pytestmark = pytest.mark.e2e

STEPS = 500


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[Terminal, Path]]:
    """A training under the live screen, at least a few steps in."""
    script = tmp_path / "train.py"
    script.write_text(training(STEPS))
    run_dir = tmp_path / "run"
    terminal = Terminal(tmp_path, ["run", "--run-dir", str(run_dir), sys.executable, str(script)])
    try:
        terminal.until(b"steps/s")
        yield terminal, run_dir
    finally:
        terminal.close()


def host_of(run_dir: Path) -> HostFiles:
    return next(iter(RunRecord.open(run_dir).hosts.values()))


def training_ended_well(run_dir: Path) -> None:
    """The command ended by itself, with all its output, and every step is in the record."""
    until(lambda: host_of(run_dir).state.state == "ended")
    record = RunRecord.open(run_dir)
    host = host_of(run_dir)
    assert host.state.exit_code == 0
    assert (host.path / "output.log").read_text().splitlines() == [f"trained {STEPS}", "narrated"]
    assert int(record.steps(0)["n_steps"].sum()) == STEPS


def test_the_app_killed(live: tuple[Terminal, Path]) -> None:
    terminal, run_dir = live
    os.kill(terminal.pid, signal.SIGKILL)
    training_ended_well(run_dir)


def test_the_terminal_closed(live: tuple[Terminal, Path]) -> None:
    terminal, run_dir = live
    os.close(terminal.fd)
    training_ended_well(run_dir)


def test_nothing_is_left_when_a_terminal_multiplexer_ends(live: tuple[Terminal, Path]) -> None:
    """tmux closes the terminal and then wakes what was stopped; Textual would open the screen again
    on that.
    """
    terminal, run_dir = live
    os.close(terminal.fd)
    os.kill(terminal.pid, signal.SIGHUP)
    os.kill(terminal.pid, signal.SIGCONT)
    until(lambda: os.waitpid(terminal.pid, os.WNOHANG) != (0, 0), 20)
    training_ended_well(run_dir)


def test_the_app_stays_with_the_verdict_and_leaves_the_summary(live: tuple[Terminal, Path]) -> None:
    terminal, run_dir = live
    training_ended_well(run_dir)
    terminal.until(b"exit 0")
    terminal.press(b"q")
    assert terminal.exit_code() == 0
    on_the_normal_screen = terminal.output.rsplit(LEAVE_ALTERNATE_SCREEN, 1)[1]
    assert b"gputop open" in on_the_normal_screen
    assert b"500 steps" in on_the_normal_screen


def test_the_traceback_of_a_training_that_failed_stays_in_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        training(40, body="\n    if i == 30: raise ValueError('the 30th batch')")
    )
    terminal = Terminal(tmp_path, ["run", "--run-dir", "run", sys.executable, "train.py"])
    terminal.until(b"exit 1")
    terminal.press(b"q")
    assert terminal.exit_code() == 1
    left = terminal.output.rsplit(LEAVE_ALTERNATE_SCREEN, 1)[1].decode()
    assert (
        left.index("gputop: ")
        < left.index("Traceback (most recent call last)")
        < left.rindex("ValueError: the 30th batch")
    )
    assert left.rstrip().endswith("ValueError: the 30th batch"), "the last thing before the prompt"
    assert "\\x1b" not in left, "our own orders to the terminal arrive as such"
    seen = re.sub(r"\x1b\]8;;.*?\x1b\\", "", left)  # links take no columns
    assert max(len(line) for line in seen.splitlines() if line.startswith("gputop: ")) < 120
