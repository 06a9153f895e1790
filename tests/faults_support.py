"""Runs a script of ``tests/faults/scripts`` under gputop, as a user would, and evaluates the
record.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_cases import Case

from gputop_analysis.findings import evaluate, judge_view
from gputop_analysis.model import Finding
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RecordError, RunRecord

SCRIPTS = Path(__file__).parent / "faults" / "scripts"
SITE = str(Path(__file__).parent / "site")


@dataclass
class Outcome:
    """What a run printed about itself and what gputop found."""

    exit_code: int
    truth: dict[str, Any]
    record: RunRecord
    output: str
    fault: str = "none"
    findings: list[Finding] = field(default_factory=list)

    @property
    def serious(self) -> dict[str, Finding]:
        """Findings above info, by id; without IN04, which a busy test machine makes true of every
        run.
        """
        kept = [one for one in self.findings if one.severity != "info"]
        return {one.id: one for one in kept if one.id != "IN04" or self.fault == "spinners"}

    def told(self) -> str:
        """All findings in words, for a failing assert."""
        return "\n".join(
            f"{f.severity} {f.id} rank {f.rank}: {f.title} | {f.evidence}" for f in self.findings
        )


@contextlib.contextmanager
def machine(alone: bool) -> Iterator[None]:
    """Faults run side by side; one that must be alone waits until the others are done and keeps
    them waiting.
    """
    path = Path(tempfile.gettempdir()) / f"gputop-faults-{os.getuid()}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def run(
    folder: Path, script: str, timeout_s: float = 120, until: str | None = None, **environment: Any
) -> Outcome:
    """Run ``script`` under ``gputop run --headless`` with the given environment variables.

    With ``until``, the run is stopped once every rank has sent an event of that type.
    """
    folder.mkdir(exist_ok=True)
    run_dir = folder / "run"
    extra = {key: str(value) for key, value in environment.items()}
    path = os.pathsep.join(filter(None, [SITE, os.environ.get("PYTHONPATH")]))
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "RENDEZVOUS": str(folder / "rendezvous"),
        **extra,
    }
    command = [sys.executable, "-m", "gputop", "run", "--headless", "--run-dir", str(run_dir)]
    limits = extra.get("CPU_QUOTA", ""), extra.get("MEMORY_MIB", "")
    with control_group(*limits) as joined, (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            [*joined, *command, "--", sys.executable, str(SCRIPTS / script)],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        if until:
            _wait_for_event(run_dir, until, int(extra.get("WORLD", 2)), timeout_s)
            _stop(process)
        try:
            exit_code = process.wait(timeout_s)
        finally:
            _stop(process)
        output.seek(0)
        text = output.read()
    record = RunRecord.open(run_dir)
    lines = [line for line in text.splitlines() if line.startswith('{"truth_ms_per_step"')]
    truth = json.loads(lines[-1]) if lines else {}
    return Outcome(exit_code, truth, record, text, extra.get("FAULT", "none"), evaluate(record))


def run_case(folder: Path, case: Case) -> Outcome:
    """Run the script of ``case`` with its fault, after a run without it where the finding needs one
    to compare with.
    """
    outcome = run(folder, case.script, until=case.until, **case.environment)
    if case.baseline:
        view = RunView(outcome.record)
        view.baseline = run(folder / "baseline", case.script).record
        outcome.findings = judge_view(view)[0]
    return outcome


@contextlib.contextmanager
def control_group(cores: str, memory_mib: str) -> Iterator[list[str]]:
    """Words that, put before a command, give it a control group with so many cores and so much
    memory.

    None for empty strings; the command joins it before it starts, so gputop sees the limit as in a
    container.
    """
    limits = []
    if cores:
        quota_us = int(float(cores) * 100_000)
        limits.append(("cpu", {"cpu.max": f"{quota_us} 100000", "cpu.cfs_quota_us": str(quota_us)}))
    if memory_mib:
        size = str(int(memory_mib) << 20)
        limits.append(("memory", {"memory.max": size, "memory.limit_in_bytes": size}))
    groups = [_made_group(*limit) for limit in limits]
    lists = [str(group / "cgroup.procs") for group in groups]
    joins = "".join(f"echo $$ > {path}; " for path in lists)
    try:
        yield ["sh", "-c", f'{joins}exec "$@"', "sh"] if groups else []
    finally:
        for group in groups:
            _removed_group(group)


def _made_group(controller: str, limit: dict[str, str]) -> Path:
    """A new group, in version 1 of control groups or in version 2, whose files have other names."""
    roots = (Path("/sys/fs/cgroup") / controller, Path("/sys/fs/cgroup"))
    root = next(one for one in roots if (one / "cgroup.procs").exists())
    group = root / f"gputop-fault-{os.getpid()}"
    group.mkdir()
    name = next(name for name in limit if (group / name).exists())
    (group / name).write_text(limit[name])
    return group


def _removed_group(group: Path) -> None:
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:  # a process of it has not ended yet
            time.sleep(0.1)


def _wait_for_event(run_dir: Path, kind: str, ranks: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(RecordError):
            if len({event.get("rank") for event in RunRecord.open(run_dir).events(kind)}) >= ranks:
                return
        time.sleep(0.3)


def _stop(process: subprocess.Popen[Any]) -> None:
    """Interrupt gputop as Ctrl-C would, up to three times."""
    for _ in range(3):
        if process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.5)
