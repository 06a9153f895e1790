"""Two hundred records that nobody's recorder wrote, as a table: a name, and what is done to a sound
record.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from record_fuzz import make_socket

from gputop_agent import wire
from gputop_probes.record import layout

Deed = Callable[[Path], object]
DEEP = b'{"a":' * 200_000
HUGE = 10**400
HOST = "hosts/box/"
BINARIES = (
    "steps/rank-00000.bin",
    "comm/rank-00000.bin",
    HOST + "gpu.bin",
    HOST + "host.bin",
    HOST + "process.bin",
)
TEXTS = ("run.json", HOST + "host.json", HOST + "events.jsonl")
OTHERS = (HOST + "output.log", HOST + "stderr.log", HOST + "recorder.lock")
WRONG: dict[str, Any] = {
    "null": None, "true": True, "minus": -1, "huge": HUGE, "nan": float("nan"), "inf": float("inf"),
    "text": "x", "list": [1, [2], None], "object": {"a": {"b": None}},
}  # fmt: skip


def write(name: str, data: bytes) -> Deed:
    return lambda run: (_room(run / name), (run / name).write_bytes(data))


def instead(name: str, make: Callable[[Path], object]) -> Deed:
    """Something else in a file's place."""

    def deed(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        _room(run / name)
        make(run / name)

    return deed


def sparse(size: int) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.touch()
        os.truncate(path, size)

    return make


def loop(path: Path) -> None:
    path.symlink_to(path)


def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Deed:
    """Change a JSON object, or each line of an event file."""

    def deed(run: Path) -> None:
        path = run / name
        lines = path.read_text().splitlines() if name.endswith("l") else [path.read_text()]
        found = [json.loads(line) for line in lines]
        for one in found:
            change(one)
        path.write_text("\n".join(map(json.dumps, found)) + "\n")

    return deed


def put(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda one: one.update(fields)


def drop(*names: str) -> Callable[[dict[str, Any]], object]:
    return lambda one: [one.pop(name, None) for name in names]


def say(*events: dict[str, Any], times: int = 1) -> Deed:
    """Append events."""

    def deed(run: Path) -> None:
        base = {"t_ns": 1_790_000_000 * 10**9, "rank": 0, "pid": 100, "host": "box"}
        lines = "".join(json.dumps({**base, **event}) + "\n" for event in events)
        with (run / HOST / "events.jsonl").open("a") as file:
            file.write(lines * times)

    return deed


def table(change: Callable[[list[list[Any]]], object]) -> Deed:
    """Change the rows of the first rank, each a list of its fields."""

    def deed(run: Path) -> None:
        path = run / "steps/rank-00000.bin"
        rows = [list(row) for row in wire.STEP.iter_unpack(path.read_bytes())]
        change(rows)
        path.write_bytes(b"".join(wire.STEP.pack(*row) for row in rows))

    return deed


def field(name: str, value: Any, at: int = 50) -> Deed:
    """One field of one row."""
    column = [known for known, _ in wire.STEP_FIELDS].index(name)
    return table(lambda rows: rows[at].__setitem__(column, value))


def columns(change: Callable[[list[list[str]]], object]) -> Deed:
    return edit("run.json", lambda head: change(head["tables"]["steps"]))


def _room(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)


def _many_ranks(run: Path) -> None:
    for rank in range(3000):
        (run / "steps" / f"rank-{rank + 7:05d}.bin").touch()


def _long_names(run: Path) -> None:
    for number in range(50):
        (run / "hosts" / (f"{number}" + "n" * 200)).mkdir()


def _blank_trace(run: Path) -> None:
    (run / "traces").mkdir()
    with gzip.open(run / "traces/rank-00000-step-5.trace.json.gz", "wb", compresslevel=1) as file:
        for _ in range(48):
            file.write(b" " * (1 << 20))


def _deeds() -> Iterator[tuple[str, Deed]]:
    for name in (*BINARIES, *TEXTS, *OTHERS):
        yield f"{name} a folder", instead(name, Path.mkdir)
        yield f"{name} a pipe", instead(name, os.mkfifo)
        yield f"{name} a socket", instead(name, make_socket)
        yield f"{name} a loop", instead(name, loop)
        yield f"{name} a device", instead(name, lambda path: path.symlink_to("/dev/zero"))
        yield f"{name} of 50 GB of nothing", instead(name, sparse(50 << 30))
        yield f"{name} empty", write(name, b"")
        yield f"{name} of noise", write(name, bytes(range(256)) * 400)
    for name in TEXTS:
        yield f"{name} nested deep", write(name, DEEP)
        yield f"{name} of brackets", write(name, b"[" * 2_000_000)
        yield f"{name} a long number", write(name, b'{"a":' + b"9" * 1_000_000 + b"}")
        yield f"{name} no UTF-8", write(name, b'{"format": "\xff\xfe"}')
        yield f"{name} a list", write(name, b"[1, 2]")
    for key, wrong in WRONG.items():
        for name in ("command", "created_ns", "tables", "name", "recording"):
            yield f"run.json {name} {key}", edit("run.json", put(**{name: wrong}))
        yield (
            f"host.json all {key}",
            edit(HOST + "host.json", lambda one, v=wrong: one.update(dict.fromkeys(one, v))),
        )
        yield (
            f"events all {key}",
            edit(HOST + "events.jsonl", lambda one, v=wrong: one.update(dict.fromkeys(one, v))),
        )
        yield (
            f"events' fields {key}",
            edit(
                HOST + "events.jsonl",
                lambda one, v=wrong: one.update(
                    {n: v for n in one if n not in ("type", "t_ns", "rank")}
                ),
            ),
        )
        yield f"hello's rank {key}", edit(HOST + "events.jsonl", put(rank=wrong))
    for name in ("run_id", "command", "created_ns", "tables", "format", "version"):
        yield f"run.json without {name}", edit("run.json", drop(name))
    yield "a newer version", edit("run.json", put(version=10**9))
    yield "no columns", columns(list.clear)
    yield "a column twice", columns(lambda one: one.append(one[0]))
    yield "a column less", columns(list.pop)
    yield "a column of objects", columns(lambda one: one.__setitem__(0, ["t_end_ns", "O"]))
    yield "a column of a huge type", columns(lambda one: one.append(["x", "V2000000000"]))
    yield "a column of no type", columns(lambda one: one.append(["x", "rubbish"]))
    yield "columns in pieces", columns(lambda one: one.append(["x"]))
    yield "columns that are numbers", columns(lambda one: one.__setitem__(0, 7))
    for name in (
        "rank-abc.bin",
        "rank-.bin",
        "rank--1.bin",
        "rank-999999999.bin",
        f"rank-{'9' * 200}.bin",
        "rank-0.bin",
    ):
        yield f"a file {name}", write(f"steps/{name}", bytes(2320))
    yield "thousands of empty ranks", _many_ranks
    yield "hosts of long names", _long_names
    yield (
        "a folder of hosts that is a file",
        lambda run: ((run / "steps").rename(run / "s"), (run / "steps").touch()),
    )
    yield "a trace of blanks", _blank_trace
    yield (
        "a trace that is a pipe",
        lambda run: ((run / "traces").mkdir(), os.mkfifo(run / "traces/a.trace.json")),
    )
    yield (
        "a trace nested deep",
        write("traces/rank-00000-step-5.trace.json", b'{"traceEvents":[' + b'{"a":' * 200_000),
    )
    yield "many events", say({"type": "log", "step": 3, "values": {"a": 1.0}}, times=60_000)
    yield "many kinds of events", say(*({"type": f"kind{n}"} for n in range(5000)))
    yield "an event of 3 MB", say({"type": "log", "values": {"a": "x" * 3_000_000}})
    yield "a line of 9 MB", write(HOST + "events.jsonl", b"x" * 9_000_000)
    for kind in (
        "stack_dump",
        "exception",
        "loader",
        "checkup",
        "replica",
        "hang_suspected",
        "xid",
        "rank_start",
    ):
        yield f"a bare {kind}", say({"type": kind})
    yield "hangs for ever", say({"type": "hang_suspected", "ranks": [0], "silent_s": 1e300})
    yield "starts nowhere", say({"type": "rank_start", "record_index": 10**15, "attempt": 10**15})
    yield (
        "a world of 10^30",
        edit(HOST + "events.jsonl", put(world_size=10**30, total_steps=10**30)),
    )
    for name in (
        "wall_ns",
        "forward_ns",
        "t_end_ns",
        "step",
        "n_steps",
        "tokens",
        "rss_bytes",
        "wall_max_ns",
        "flags",
    ):
        widest = dict(wire.STEP_FIELDS)[name]
        yield f"{name} as large as can be", field(name, 2**63 - 1 if widest == "q" else 2**32 - 1)
        yield f"{name} of zero", field(name, 0)
    for name in ("wall_ns", "data_ns", "t_end_ns", "cpu_ns"):
        yield f"{name} below zero", field(name, -(2**62))
        yield f"{name} of the last row", field(name, -(2**62), at=-1)
    yield "rows turned round", table(list.reverse)
    yield "rows twice", table(lambda rows: rows.extend(rows[:]))
    yield "one row many times", table(lambda rows: rows.__setitem__(slice(None), rows[:1] * 500))
    yield (
        "all fields of ones",
        table(lambda rows: [row.__setitem__(slice(None), [1] * len(row)) for row in rows]),
    )
    yield "shifted by a byte", lambda run: _shift(run / "steps/rank-00000.bin")
    yield "infinite GPU figures", lambda run: (run / HOST / "gpu.bin").write_bytes(_infinite() * 50)


def _shift(path: Path) -> None:
    path.write_bytes(b"\x01" + path.read_bytes())


def _infinite() -> bytes:
    values = [float("inf") if code == "f" else 2**31 - 1 for _, code in layout.GPU_FIELDS]
    return struct.pack("<" + "".join(code for _, code in layout.GPU_FIELDS), *values)


EVIL: dict[str, Deed] = dict(_deeds())
