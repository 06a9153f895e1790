"""Whatever fails in gputop, the training runs on with its own exit code and its own output. Real
torch, real kills.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_support import GPUTOP, environment, training
from recorder_support import until

from gputop_probes import procfs
from gputop_probes.record.manifest import HostState
from gputop_probes.record.reader import RunRecord

pytestmark = pytest.mark.e2e

STEPS = 400
EXPECTED_OUTPUT = f"trained {STEPS}\n"


class Run:
    """A headless run of a real training, started and not waited for; ``body`` runs in each of its
    steps.
    """

    def __init__(self, tmp_path: Path, body: str = ""):
        self.run_dir = tmp_path / "run"
        script = tmp_path / "train.py"
        script.write_text(training(STEPS, body))
        self.process = subprocess.Popen(
            [*GPUTOP, "run", "--run-dir", str(self.run_dir), sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(tmp_path),
            cwd=tmp_path,
        )

    def state(self) -> HostState:
        return next(iter(RunRecord.open(self.run_dir).hosts.values())).state

    def until(self, condition: Callable[[RunRecord], bool], seconds: float = 60) -> RunRecord:
        def record_that_meets_it() -> RunRecord | None:
            if not (self.run_dir / "run.json").exists():
                return None
            record = RunRecord.open(self.run_dir)
            return record if condition(record) else None

        return until(record_that_meets_it, seconds)

    def steps_seen(self, record: RunRecord) -> int:
        return int(record.steps(0)["n_steps"].sum()) if record.ranks() else 0


def command_ends(state: HostState, seconds: float = 60) -> None:
    until(lambda: (stat := procfs.stat(state.command_pid)) is None or stat.state == "Z", seconds)


def test_recorder_killed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.until(lambda record: run.steps_seen(record) > 50)
    os.kill(run.state().recorder_pid, signal.SIGKILL)
    seen = run.steps_seen(RunRecord.open(run.run_dir))
    output, _ = run.process.communicate(timeout=60)
    assert (run.process.returncode, output) == (0, EXPECTED_OUTPUT)
    assert run.steps_seen(RunRecord.open(run.run_dir)) >= seen > 50


WAIT_HALF_WAY = """
    import os
    while i == 200 and not os.path.exists("go"):
        time.sleep(0.01)
"""


def test_recorder_killed_and_taken_up_again(tmp_path: Path) -> None:
    run = Run(tmp_path, WAIT_HALF_WAY)
    run.until(lambda record: run.steps_seen(record) > 50)
    os.kill(run.state().recorder_pid, signal.SIGKILL)
    attach = subprocess.Popen(
        [*GPUTOP, "attach", "--headless", str(run.run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    run.until(lambda record: any(event["adopted"] for event in record.events("recorder_start")))
    (tmp_path / "go").touch()
    _, told = attach.communicate(timeout=60)
    assert attach.returncode == 0, told
    output, _ = run.process.communicate(timeout=60)
    assert (run.process.returncode, output) == (0, EXPECTED_OUTPUT)
    steps = RunRecord.open(run.run_dir).steps(0)
    assert int(steps["n_steps"].sum()) <= STEPS, "no step is there twice"
    later = steps[steps["step"] >= STEPS // 2]
    assert int(later["n_steps"].sum()) >= STEPS // 2 - 5, (
        "what the killed recorder had not read is lost, and no more"
    )


def test_front_killed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.until(lambda record: run.steps_seen(record) > 50)
    state = run.state()
    run.process.kill()
    run.process.communicate()
    record = run.until(lambda record: run.state().state == "ended")
    assert run.state().exit_code == 0
    assert run.steps_seen(record) == STEPS
    assert (run.run_dir / "hosts" / state.host / "output.log").read_text() == EXPECTED_OUTPUT


def test_socket_deleted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.until(lambda record: run.steps_seen(record) > 20)
    os.unlink(run.state().socket)
    output, _ = run.process.communicate(timeout=60)
    assert (run.process.returncode, output) == (0, EXPECTED_OUTPUT)
    assert run.steps_seen(RunRecord.open(run.run_dir)) == STEPS


def test_reader_stopped(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.until(lambda record: run.steps_seen(record) > 20)
    state = run.state()
    os.kill(state.recorder_pid, signal.SIGSTOP)
    command_ends(state)
    os.kill(state.recorder_pid, signal.SIGCONT)
    output, _ = run.process.communicate(timeout=60)
    assert (run.process.returncode, output) == (0, EXPECTED_OUTPUT)
