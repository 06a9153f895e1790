"""A hung training is told as it hung, however it was stopped: which rank, at which line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import e2e_support
import pytest
from e2e_support import gputop

from gputop_probes.record.reader import RunRecord

pytestmark = pytest.mark.e2e

SCRIPT = """
import os, sys, threading
import eager, torch
import torch.distributed as dist
import torch.multiprocessing as mp

def deadlock(lock):
    lock.acquire()  # never released

def work(rank, world, stuck, wakes):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    lock = threading.Lock()
    lock.acquire()
    for step in range(60):
        if stuck < 0 and rank == 1 and step == 30:
            pass
        else:
            dist.barrier()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == stuck and step == 30:
            if wakes:
                threading.Timer(wakes, lock.release).start()
            deadlock(lock)
    import time
    time.sleep(30 if wakes else 0)

if __name__ == "__main__":
    world, stuck, wakes = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4])
    mp.start_processes(work, (world, stuck, wakes), world, start_method="fork")
"""
LIMIT_S = "2"


def free_port() -> str:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def hung(
    tmp_path: Path, world: int, stuck: int, wakes: float = 0
) -> tuple[subprocess.Popen[bytes], Path]:
    """A run under gputop, and its record, once the recorder has heard where every rank stands."""
    (tmp_path / "train.py").write_text(SCRIPT)
    run_dir = tmp_path / "run"
    command = ["python", "train.py", str(world), str(stuck), str(wakes), free_port()]
    front = subprocess.Popen(
        [*e2e_support.GPUTOP, "run", "--headless", "--run-dir", str(run_dir), *command],
        env=e2e_support.environment(tmp_path, GPUTOP_HANG_S=LIMIT_S),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        kinds = [event["type"] for event in events(run_dir)]
        if kinds.count("stack_dump") >= world and (not wakes or "hang_over" in kinds):
            return front, run_dir
        time.sleep(0.1)
    front.kill()
    raise AssertionError(f"no hang was seen: {[event['type'] for event in events(run_dir)]}")


def events(run_dir: Path) -> list[dict[str, Any]]:
    found = list(run_dir.glob("hosts/*/events.jsonl"))
    return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []


def judged(run_dir: Path, tmp_path: Path) -> dict[str, Any]:
    """The verdict of ``report --json``."""
    told = gputop("report", str(run_dir), "--json", tmp_path=tmp_path).stdout
    return json.loads(told)


def replayed(run_dir: Path, share: float) -> Any:
    """What the replay's screen shows at a moment of the recording."""
    from gputop.feed.replay import ReplayFeed

    feed = ReplayFeed(run_dir)
    feed.take()
    feed.seek_to(share)
    return feed.take()


def expect_blame(run_dir: Path, tmp_path: Path, rank: int, how: str) -> None:
    """Every form says that this rank holds the others up, at the line of the lock."""
    healths = (
        ("failed",) if how == "kill" else ("critical",)
    )  # a kill from elsewhere is a failure of the run
    data = judged(run_dir, tmp_path)
    (hang,) = [one for one in data["findings"] if one["id"] == "HC01"]
    assert (hang["rank"], hang["severity"], "deadlock" in hang["site"]) == (rank, "critical", True)
    assert data["verdict"]["health"] in healths and data["verdict"]["rank"] == rank
    assert f"rank {rank} is stuck at train.py" in data["verdict"]["headline"]
    for form in ([], ["--md"]):
        assert (
            f"rank {rank} is stuck at"
            in gputop("report", str(run_dir), *form, tmp_path=tmp_path).stdout
        )
    snapshot = replayed(run_dir, 1.0)
    assert snapshot.verdict.health in healths
    assert (snapshot.findings[0].id, snapshot.findings[0].rank) == ("HC01", rank)


def stop(front: subprocess.Popen[bytes], run_dir: Path, how: str) -> None:
    if how == "kill":
        started = next(event for event in events(run_dir) if event["type"] == "run_start")
        os.killpg(os.getpgid(int(started["pid"])), signal.SIGKILL)
    else:
        front.send_signal(signal.Signals[how])
    try:
        front.wait(60)
    finally:
        front.kill()


@pytest.mark.parametrize(
    ("how", "world", "stuck"),
    [("SIGINT", 2, 0), ("SIGTERM", 3, 1), ("kill", 2, 1)],
)
def test_the_blame_stands_after_the_stop(tmp_path: Path, how: str, world: int, stuck: int) -> None:
    front, run_dir = hung(tmp_path, world, stuck)
    from gputop_analysis.findings import evaluate

    (live, *_) = evaluate(RunRecord.open(run_dir), live=True)
    assert (live.id, live.rank) == ("HC01", stuck)
    time.sleep(1.0)
    stop(front, run_dir, how)
    expect_blame(run_dir, tmp_path, stuck, how)


def test_a_skipped_collective_is_told_with_its_branch_after_a_kill_of_everything(
    tmp_path: Path,
) -> None:
    front, run_dir = hung(tmp_path, 2, -1)
    told = [event for event in events(run_dir) if event["type"] == "hang_suspected"]
    assert told[0]["silent_s"] < float(LIMIT_S) + 10
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        sent = [e for e in events(run_dir) if e["type"] == "flight_recorder"]
        if {e["rank"] for e in sent if e["reason"] == "hang"} == {0, 1}:
            break
        time.sleep(0.1)
    stop(front, run_dir, "kill")
    (cause, *_) = judged(run_dir, tmp_path)["findings"]
    assert (cause["rank"], cause["severity"]) == (1, "critical")
    source = (tmp_path / "train.py").read_text().splitlines()
    line = next(number for number, text in enumerate(source, 1) if "stuck < 0" in text)
    assert f"it took the other branch at train.py:{line}" in cause["title"]


def test_a_hang_that_resolved_by_itself_is_over_however_the_run_was_stopped_later(
    tmp_path: Path,
) -> None:
    front, run_dir = hung(tmp_path, 2, 1, wakes=5)
    stop(front, run_dir, "SIGINT")
    data = judged(run_dir, tmp_path)
    assert [one["severity"] for one in data["findings"] if one["id"].startswith("HC0")][:1] == [
        "high"
    ]
    assert data["verdict"]["health"] != "critical"
    assert "stopped by you" in data["verdict"]["headline"]
