"""What arrives on the socket: ranks found, whole records kept, nonsense counted, on both kinds of
socket.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import recorder_support as support

from gputop_agent import wire
from gputop_probes.record.writer import RecordWriter
from gputop_probes.recorder import intake, ranks, server
from gputop_probes.recorder.journal import Journal


class Bench:
    """An intake on a real socket, drained by hand."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool = False):
        monkeypatch.setenv(wire.ENV_TRANSPORT, "stream" if stream else "")
        self.run_dir = tmp_path / "run"
        host = support.host_dir(self.run_dir).name
        writer = RecordWriter.create(
            self.run_dir, host, {"run_id": "r", "command": [], "created_ns": 1}
        )
        self.requests: list[dict[str, Any]] = []
        self.server = server.RecorderServer(tmp_path / "s")
        self.stream = stream
        self.table = ranks.RankAssignment()
        self.intake = intake.Intake(
            Journal(writer, 0, {"host": host}),
            self.table,
            lambda peer, request: self.requests.append(request),
        )

    def connect(self) -> socket.socket:
        link = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM if self.stream else socket.SOCK_SEQPACKET
        )
        link.connect(str(self.server.path))
        link.settimeout(2)
        self.drain()
        return link

    def drain(self) -> None:
        for connection in self.server.accept():
            self.intake.add(connection)
        self.intake.drain()

    def send(self, link: socket.socket, *messages: bytes) -> None:
        for message in messages:
            link.send(struct.pack("<I", len(message)) + message if self.stream else message)
        self.drain()

    def pretend_pid(self, pid: int) -> None:
        """The newest connection comes from another process."""
        self.intake.peers[-1].connection.pid = pid


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def event(kind: str, **fields: Any) -> bytes:
    return wire.MSG_EVENT + json.dumps({"type": kind, "t_ns": 5, **fields}).encode()


def step(index: int) -> bytes:
    return wire.STEP.pack(*[1] * 21, 0.0, 0.0, 0.0, 0.0, 0.0, index, *[1] * 8)


@pytest.mark.parametrize("stream", [False, True])
def test_steps_before_the_hello_reach_the_rank_that_it_names(
    tmp_path, monkeypatch, stream: bool
) -> None:
    bench = Bench(tmp_path, monkeypatch, stream)
    link = bench.connect()
    bench.send(
        link, wire.MSG_STEPS + step(0) + step(1), event("stacks"), event("hello", rank=3, tid=9)
    )
    bench.send(link, wire.MSG_STEPS + step(2), wire.MSG_COMM + bytes(wire.COMM.size))
    assert support.step_indices(bench.run_dir, 3) == [0, 1, 2]
    assert (bench.run_dir / "comm" / "rank-00003.bin").stat().st_size == wire.COMM.size
    assert [(e["type"], e["rank"]) for e in support.events(bench.run_dir)] == [
        ("rank_start", 3),
        ("stacks", 3),
        ("hello", 3),
    ]
    assert (bench.table.by_number[3].tid, bench.table.by_number[3].last_step) == (9, 2)


@pytest.mark.parametrize(
    "message",
    [
        b"?",
        b"S",
        b"Sxx",
        b"E",
        b"E[]",
        b"E{}",
        b'E{"type": 1, "t_ns": 1}',
        b'E{"type": "x"}',
        b"E" + b"[" * 9_000,
        b"\xff" * 100,
        b"X[1]",
        b"C" + bytes(wire.COMM.size + 1),
    ],
    ids=range(12),
)
def test_nonsense_is_counted_and_ignored(bench: Bench, message: bytes) -> None:
    link = bench.connect()
    bench.send(link, event("hello", rank=0), message, wire.MSG_STEPS + step(0))
    assert bench.intake.garbled == 1
    assert support.step_indices(bench.run_dir) == [0]
    assert [e["type"] for e in support.events(bench.run_dir)] == ["rank_start", "hello"]


@pytest.mark.parametrize("rank", [-1, "0", 1e9, True, None, 10**12, [0]])
def test_an_absurd_rank_gets_the_next_free_one(bench: Bench, rank: Any) -> None:
    bench.send(bench.connect(), event("hello", rank=rank))
    assert list(bench.table.by_number) == [0]


def test_two_living_processes_that_claim_one_rank(bench: Bench) -> None:
    bench.send(bench.connect(), event("hello", rank=0))
    second = bench.connect()
    bench.pretend_pid(os.getppid())
    bench.send(second, event("hello", rank=0))
    assert {rank.number: rank.pid for rank in bench.table.by_number.values()} == {
        0: os.getpid(),
        1: os.getppid(),
    }


def test_a_restarted_rank_is_the_next_attempt(bench: Bench) -> None:
    first = bench.connect()
    bench.pretend_pid(4_000_000)
    bench.send(first, event("hello", rank=1), wire.MSG_STEPS + step(0) + step(1))
    first.close()
    bench.drain()
    bench.send(bench.connect(), event("hello", rank=1), wire.MSG_STEPS + step(0))
    starts = support.events(bench.run_dir, "rank_start")
    assert [(e["rank"], e["attempt"], e["record_index"]) for e in starts] == [(1, 0, 0), (1, 1, 2)]
    assert [e["reason"] for e in support.events(bench.run_dir, "rank_lost")] == ["process gone"]


def test_goodbye_is_no_loss_and_a_new_connection_of_the_same_process_no_restart(
    bench: Bench,
) -> None:
    first = bench.connect()
    bench.send(first, event("hello", rank=0), event("goodbye"))
    first.close()
    bench.drain()
    bench.send(bench.connect(), event("hello", rank=0))
    assert [e["type"] for e in support.events(bench.run_dir)] == [
        "rank_start",
        "hello",
        "goodbye",
        "hello",
    ]


def test_a_stream_that_lost_its_framing_is_dropped(tmp_path, monkeypatch) -> None:
    bench = Bench(tmp_path, monkeypatch, stream=True)
    link = bench.connect()
    link.send(struct.pack("<I", 1 << 30) + b"x")
    bench.drain()
    assert link.recv(1) == b""
    assert bench.intake.peers == []


def test_commands_reach_the_ranks_and_only_them(bench: Bench) -> None:
    links = [bench.connect() for _ in range(2)]
    bench.pretend_pid(4_000_001)
    for rank, link in enumerate(links):
        bench.send(link, event("hello", rank=rank))
    visitor = bench.connect()
    bench.send(visitor, wire.MSG_COMMAND + b'{"cmd": "ping"}')
    assert bench.requests == [{"cmd": "ping"}]
    assert bench.intake.send_to_ranks({"cmd": "dump"}) == 2
    assert bench.intake.send_to_ranks({"cmd": "dump"}, only=1) == 1
    assert links[0].recv(100) == wire.MSG_COMMAND + b'{"cmd": "dump"}'
    visitor.settimeout(0.05)
    with pytest.raises(TimeoutError):
        visitor.recv(100)


def test_a_process_that_never_says_hello_still_counts(bench: Bench) -> None:
    link = bench.connect()
    bench.send(link, wire.MSG_STEPS + step(0))
    assert support.step_indices(bench.run_dir) == []
    link.close()
    bench.drain()
    assert support.step_indices(bench.run_dir) == [0]


def test_socket_is_private(bench: Bench) -> None:
    assert bench.server.path.stat().st_mode & 0o777 == 0o600
    bench.server.path.unlink()
    assert not bench.server.file_is_there()
    bench.server.listen_again()
    bench.send(bench.connect(), event("hello", rank=0))
    assert list(bench.table.by_number) == [0]
    assert time.monotonic() - bench.table.by_number[0].progress_s < 60


def test_a_worker_speaks_for_its_rank_and_is_none(bench: Bench) -> None:
    training = bench.connect()
    bench.pretend_pid(4242)
    bench.send(training, event("hello", rank=3, tid=9))
    worker = bench.connect()
    bench.pretend_pid(5001)
    bench.send(worker, event("loader_worker", parent=4242), event("loader_worker", parent=777))
    told = [e for e in support.events(bench.run_dir) if e["type"] == "loader_worker"]
    assert [(e["rank"], e["pid"]) for e in told] == [(3, 5001)]
    assert list(bench.table.by_number) == [3]
    assert bench.intake.garbled == 0


def test_a_worker_that_does_not_say_whose_it_is_counts_as_garbled(bench: Bench) -> None:
    worker = bench.connect()
    bench.send(worker, event("loader_worker", parent="x"))
    assert bench.intake.garbled == 1
