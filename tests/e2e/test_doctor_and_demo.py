"""What a newcomer calls first: the doctor, and the demo where there is no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from e2e_support import environment, gputop

pytestmark = pytest.mark.e2e

NO_TORCH = "import sys; sys.modules['torch'] = None; from gputop.cli import main; sys.exit(main())"


def test_doctor_trains_for_real_under_injection(tmp_path) -> None:
    done = gputop("doctor", "--json", "--python", sys.executable, tmp_path=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert set(checks) == {"install", "terminal", "records", "host", "gpus", "torch", "injection"}
    assert checks["injection"]["status"] == "ok"
    assert "30 steps" in checks["injection"]["detail"]


def test_doctor_notices_another_gputop(tmp_path) -> None:
    other = tmp_path / "bin" / "gputop"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho another project\n")
    other.chmod(0o755)
    path = f"{other.parent}:/usr/bin:/bin"
    done = gputop(
        "doctor", "--json", "--python", "no-such-python", tmp_path=tmp_path, env={"PATH": path}
    )
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["install"]["status"] == "warn"
    assert str(other) in checks["install"]["detail"]
    assert checks["torch"]["status"] == "fail"
    assert done.returncode == 3


def test_demo_is_a_recording_of_a_real_run_and_needs_no_torch(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, "demo", "--report"],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "tiny_gpt.py" in done.stdout
    assert "backward" in done.stdout
    without_a_terminal = gputop("demo", tmp_path=tmp_path)
    assert without_a_terminal.returncode == 3
    assert "gputop demo --report" in without_a_terminal.stderr
