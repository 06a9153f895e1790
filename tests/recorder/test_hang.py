"""When silence is a hang, and when it is not."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import recorder_support as support

from gputop_agent import wire
from gputop_probes.record.writer import RecordWriter
from gputop_probes.recorder import blocked, hang, ranks
from gputop_probes.recorder.hang import HangWatch
from gputop_probes.recorder.journal import Journal


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Watched:
    """Two ranks under a watch whose time is ours."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float | None = 30.0
    ):
        self.clock = Clock()
        monkeypatch.setattr(hang, "time", self.clock)
        monkeypatch.setattr(ranks, "time", self.clock)
        self.run_dir = tmp_path / "run"
        host = support.host_dir(self.run_dir).name
        writer = RecordWriter.create(
            self.run_dir, host, {"run_id": "r", "command": [], "created_ns": 1}
        )
        self.sent: list[dict[str, Any]] = []
        self.table = ranks.RankAssignment()
        self.ranks = [
            self.table.claim(pid, rank)[0] for rank, pid in enumerate((os.getpid(), os.getppid()))
        ]
        self.watch = HangWatch(
            Journal(writer, 0, {}),
            self.table,
            lambda command: self.sent.append(command) or 1,
            limit_s,
        )

    def train(
        self, steps: int, only: int | None = None, wall_ns: int = 10**7, wall_max_ns: int = 0
    ) -> None:
        for _ in range(steps):
            for rank in self.ranks:
                if only in (None, rank.number):
                    record = wire.STEP.pack(
                        1,
                        wall_ns,
                        *[0] * 10,
                        wall_max_ns,
                        *[0] * 8,
                        0.0,
                        0.0,
                        0.0,
                        0.0,
                        0.0,
                        rank.last_step + 1,
                        1,
                        *[0] * 7,
                    )
                    rank.saw_steps(record)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now += 1
            self.watch.check()

    def kinds(self) -> list[str]:
        """What is told of hangs."""
        types = [event["type"] for event in support.events(self.run_dir)]
        return [event_type for event_type in types if event_type != "standing"]

    def looks(self) -> list[dict[str, Any]]:
        """What is told of silences that are no hangs yet."""
        return [event for event in support.events(self.run_dir) if event["type"] == "standing"]

    def asked(self, reason: str) -> list[str]:
        """Which commands were sent to the ranks for a reason."""
        return [command["cmd"] for command in self.sent if command["reason"] == reason]


def test_a_hang_is_told_once_asked_about_twice_and_ends(tmp_path, monkeypatch) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(10)
    watched.wait(30)
    assert watched.kinds() == []
    watched.wait(2)
    (event,) = [e for e in support.events(watched.run_dir) if e["type"] != "standing"]
    assert (event["type"], event["ranks"], event["limit_s"]) == ("hang_suspected", [0, 1], 30.0)
    assert watched.asked("hang") == ["dump", "flight_recorder"]
    watched.wait(200)
    assert watched.asked("hang") == ["dump", "flight_recorder"] * 2
    watched.train(1)
    watched.wait(1)
    assert watched.kinds() == ["hang_suspected", "hang_over"]


def test_a_rank_that_works_without_steps_is_no_hang_nor_are_those_that_wait_for_it(
    tmp_path, monkeypatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(10)
    for _ in range(100):
        watched.wait(2)
        watched.ranks[1].moves()
    assert watched.kinds() == []
    watched.wait(40)
    assert watched.kinds() == ["hang_suspected"]


def test_a_silence_is_looked_at_once_long_before_it_is_a_hang(tmp_path, monkeypatch) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(10)
    watched.wait(7)
    assert not watched.sent
    watched.wait(10)
    (event,) = watched.looks()
    assert (event["ranks"], event["silent_s"], event["limit_s"]) == ([0, 1], 9.0, 8.0)
    assert [thread["rank"] for thread in event["threads"]] == [0, 1]
    assert watched.asked("standing") == ["dump", "flight_recorder"]
    watched.train(1)
    watched.wait(10)
    assert len(watched.looks()) == 2 and watched.kinds() == []


@pytest.mark.parametrize("why", ["works", "long steps", "alone"])
def test_a_silence_that_is_nothing_new_is_not_looked_at(tmp_path, monkeypatch, why: str) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(10)
    if why == "long steps":
        watched.train(1, wall_max_ns=6 * 10**9)
    if why == "alone":
        watched.table.by_number.popitem()
    for _ in range(8):
        watched.wait(2)
        if why == "works":
            watched.ranks[1].moves()
    assert not watched.looks() and not watched.sent


def test_the_first_steps_are_long_and_say_nothing_of_later_ones(tmp_path, monkeypatch) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(2, wall_max_ns=60 * 10**9)
    watched.train(10)
    watched.wait(10)
    assert len(watched.looks()) == 1


def test_slow_steps_are_no_hang(tmp_path, monkeypatch) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(10, wall_ns=5 * 10**9)
    watched.wait(99)
    assert watched.kinds() == []
    watched.wait(3)
    assert watched.kinds() == ["hang_suspected"]


@pytest.mark.parametrize("why", ["few steps", "goodbye", "gone", "progress"])
def test_silence_that_is_no_hang(tmp_path, monkeypatch, why: str) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(3 if why == "few steps" else 10)
    for rank in watched.ranks:
        rank.said_goodbye = why == "goodbye"
        rank.connected = why != "gone"
    for _ in range(10):
        watched.wait(10)
        if why == "progress":
            for rank in watched.ranks:
                rank.progress_s = watched.clock.now
    assert watched.kinds() == []


def test_time_in_which_the_recorder_itself_stood_still_does_not_count(
    tmp_path, monkeypatch
) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(10)
    watched.wait(1)
    watched.clock.now += 500
    watched.watch.check()
    assert watched.kinds() == []


def test_a_stopped_process_is_no_hang(tmp_path, monkeypatch) -> None:
    watched = Watched(tmp_path, monkeypatch)
    watched.train(10)
    real = hang.procfs.stat
    monkeypatch.setattr(hang.procfs, "stat", lambda pid: real(os.getpid())._replace(state="T"))
    watched.wait(100)
    assert watched.kinds() == []


@pytest.mark.parametrize(("text", "limit"), [("5", 5.0), ("", 30.0), ("-1", 30.0), ("soon", 30.0)])
def test_limit_from_the_environment(tmp_path, monkeypatch, text: str, limit: float) -> None:
    monkeypatch.setenv("GPUTOP_HANG_S", text)
    watched = Watched(tmp_path, monkeypatch, limit_s=None)
    assert watched.watch.limit_s(watched.ranks[0]) == limit


@pytest.mark.parametrize(
    ("machine", "number", "call"),
    [
        ("x86_64", 0, "read"),
        ("x86_64", 288, "accept"),
        ("x86_64", 220, "lock"),
        ("aarch64", 63, "read"),
        ("aarch64", 98, "futex"),
        ("aarch64", 260, "wait"),
        ("riscv64", 63, ""),
        ("x86_64", -1, ""),
    ],
)
def test_a_call_is_known_by_the_numbers_of_the_machine(monkeypatch, machine, number, call) -> None:
    """They differ: 63 reads on ARM and is ``uname`` on x86-64."""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=machine))
    syscall = f"{number} 0xffff 0x0\n".encode()
    texts = {"syscall": syscall, "stat": b"7 (python) S 1"}
    monkeypatch.setattr(
        blocked.procfs, "read_bytes", lambda path: texts.get(os.path.basename(path))
    )
    assert blocked.describe(7, 7)["call"] == call


def test_what_a_blocked_thread_waits_for(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    held = os.open(
        fifo, os.O_RDWR
    )  # a writer, so that the reader's open returns and its read blocks
    reader = subprocess.Popen(["cat", str(fifo)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while (
            not (found := blocked.describe(reader.pid, reader.pid))["path"]
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
    finally:
        reader.kill()
        reader.wait()
        os.close(held)
    assert found["state"] == "S"
    if os.uname().machine == "x86_64":
        assert (found["path"], found["mount"].endswith(")")) == (str(fifo), True)
    assert blocked.describe(reader.pid, reader.pid)["state"] == ""


@pytest.mark.parametrize(("steps", "told"), [(2, ["hang_suspected"]), (1, [])])
def test_a_rank_that_does_not_end_with_the_others_hangs_after_few_steps_too(
    tmp_path, monkeypatch, steps: int, told: list[str]
) -> None:
    """Its last step ends with the process. With fewer steps it may be in a long first one."""
    watched = Watched(tmp_path, monkeypatch)
    watched.train(3, only=0)
    watched.train(steps, only=1)
    watched.wait(31)
    assert watched.kinds() == []
    watched.ranks[0].said_goodbye = True
    watched.wait(5)
    assert watched.kinds() == told
