"""Ctrl-Z, fg and bg in a shell: the training stops and goes on with gputop, and nothing is blamed
on it.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_support import GPUTOP, gputop
from pty_support import Terminal

from gputop_probes.record.reader import RunRecord

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not shutil.which("bash"), reason="needs a shell with job control"),
]

TICKING = """
import os, time
name = "rank-0" if os.fork() else "rank-1"
if name == "rank-1": os.setsid()
print("up", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and not os.path.exists("finish"):
    open(name, "a").write("x")
    time.sleep(0.05)
"""
STOPPED_S = 2.0


class Shell(Terminal):
    """An interactive bash on a terminal, in which gputop is a job."""

    def __init__(self, tmp_path: Path):
        super().__init__(tmp_path, ["--norc", "-i"], ["bash"])
        self.type("PS1='ready> '")
        self.until(b"ready> ")

    def type(self, line: str) -> None:
        self.press(line.encode() + b"\n")

    def next(self, text: bytes, seconds: float = 60) -> None:
        """Read until ``text`` is drawn anew."""
        self.output = b""
        self.until(text, seconds)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    (tmp_path / "finish").touch()
    time.sleep(0.1)
    shell.close()


def ticks(tmp_path: Path) -> list[int]:
    return [
        path.stat().st_size if path.exists() else 0
        for path in (tmp_path / "rank-0", tmp_path / "rank-1")
    ]


def stands_still(tmp_path: Path, seconds: float) -> bool:
    before = ticks(tmp_path)
    time.sleep(seconds)
    return ticks(tmp_path) == before


def moves(tmp_path: Path, seconds: float = 20) -> bool:
    """Whether both processes go on."""
    before, deadline = ticks(tmp_path), time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(now > then for now, then in zip(ticks(tmp_path), before, strict=True)):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("screen", ["headless", "live"])
def test_ctrl_z_and_fg(tmp_path: Path, shell: Shell, screen: str) -> None:
    option = ["--headless"] if screen == "headless" else []
    words = [*GPUTOP, "run", *option, "--run-dir", "run", sys.executable, "-c", TICKING]
    shell.type(shlex.join(words))
    shell.until(b"Findings" if screen == "live" else b"\nup")
    assert moves(tmp_path)
    for _ in range(2):
        shell.press(b"\x1a")
        shell.next(b"Stopped")
        assert stands_still(tmp_path, STOPPED_S)
        shell.type("fg")
        assert moves(tmp_path)
    (tmp_path / "finish").touch()
    if screen == "live":
        shell.next(b"exit 0")
        shell.press(b"q")
    shell.next(b"ready> ")
    shell.type("echo code $?")
    shell.next(b"code 0")
    kinds = [
        event["type"] for event in RunRecord.open(tmp_path / "run").events("suspended", "resumed")
    ]
    assert kinds == ["suspended", "resumed"] * 2
    assert all(
        e["stopped_ms"] >= 1e3 * STOPPED_S
        for e in RunRecord.open(tmp_path / "run").events("resumed")
    )


def test_bg_lets_the_training_go_on(tmp_path: Path, shell: Shell) -> None:
    shell.type(
        shlex.join(
            [*GPUTOP, "run", "--headless", "--run-dir", "run", sys.executable, "-c", TICKING]
        )
    )
    shell.until(b"\nup")
    shell.press(b"\x1a")
    shell.next(b"Stopped")
    assert stands_still(tmp_path, 0.5)
    shell.type("bg")
    assert moves(tmp_path)


RANKS = """
import os, sys, time, eager, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for i in range(2000):
    model(torch.randn(8, 32)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    open(f"rank-{rank}", "a").write("x")
    time.sleep(0.01)
    done = torch.tensor(float(os.path.exists("finish")))
    torch.distributed.all_reduce(done)
    if done: break
torch.distributed.destroy_process_group()
print("trained")
"""


def test_no_finding_blames_the_time_in_which_the_ranks_were_stopped(
    tmp_path: Path, shell: Shell
) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    words = [
        *GPUTOP,
        "run",
        "--headless",
        "--hang-seconds",
        "1",
        "--run-dir",
        "run",
        sys.executable,
    ]
    words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ranks.py"]
    shell.type(shlex.join(words))
    deadline = time.monotonic() + 90
    while min(ticks(tmp_path)) < 50:
        assert time.monotonic() < deadline, shell.output
        time.sleep(0.1)
    shell.press(b"\x1a")
    shell.next(b"Stopped")
    assert stands_still(tmp_path, 6.0)
    shell.type("fg")
    before = ticks(tmp_path)
    while min(ticks(tmp_path)) < min(before) + 50:
        assert time.monotonic() < deadline + 60, shell.output
        time.sleep(0.1)
    (tmp_path / "finish").touch()
    shell.next(b"ready> ", 90)
    record = RunRecord.open(tmp_path / "run")
    assert not list(record.events("hang_suspected"))
    for rank in (0, 1):
        rows = record.steps(rank)
        phases = sum(
            rows[f"{name}_ns"]
            for name in ("data", "h2d", "forward", "backward", "optimizer", "comm")
        )
        phases = phases + sum(
            rows[f"{name}_ns"] for name in ("eval", "checkpoint", "compile", "other")
        )
        assert (phases == rows["wall_ns"]).all()
        assert rows["wall_max_ns"][5:].max() < 4e9
    report = json.loads(gputop("report", str(tmp_path / "run"), "--json", tmp_path=tmp_path).stdout)
    assert not [f["id"] for f in report["findings"] if f["severity"] == "critical"]
