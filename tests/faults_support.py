"""Runs a script of ``tests/faults/scripts`` under gputop, as a user would, and evaluates the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop_analysis.findings import evaluate
from gputop_analysis.model import Finding
from gputop_probes.record.reader import RunRecord

SCRIPTS = Path(__file__).parent / "faults" / "scripts"


@dataclass
class Outcome:
    """What a run printed about itself and what gputop found."""

    exit_code: int
    truth: dict[str, Any]
    record: RunRecord
    output: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def serious(self) -> dict[str, Finding]:
        """Findings above info, by id."""
        return {one.id: one for one in self.findings if one.severity != "info"}

    def told(self) -> str:
        """All findings in words, for a failing assert."""
        return "\n".join(f"{f.severity} {f.id} rank {f.rank}: {f.title} | {f.evidence}" for f in self.findings)


def run(folder: Path, script: str, timeout_s: float = 90, **environment: Any) -> Outcome:
    """Run ``script`` under ``gputop run --headless`` with the given environment variables."""
    run_dir = folder / "run"
    extra = {key: str(value) for key, value in environment.items()}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RENDEZVOUS": str(folder / "rendezvous"), **extra}
    command = [sys.executable, "-m", "gputop", "run", "--headless", "--run-dir", str(run_dir)]
    done = subprocess.run(
        [*command, "--", sys.executable, str(SCRIPTS / script)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    record = RunRecord.open(run_dir)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"truth_ms_per_step"')]
    truth = json.loads(lines[-1]) if lines else {}
    return Outcome(done.returncode, truth, record, done.stdout + done.stderr, evaluate(record))
