"""Builds run records for the analysis tests, byte for byte as a recorder writes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gputop_agent import wire
from gputop_probes.record import layout
from gputop_probes.record.reader import RunRecord
from gputop_probes.record.writer import RecordWriter

T0 = 1_700_000_000_000_000_000
HOST = "box"


def pack(table: str, **values: Any) -> bytes:
    """One struct of a table; fields not given are "not measured"."""
    fields = layout.TABLES[table]
    unknown = set(values) - {name for name, _ in fields}
    assert not unknown, unknown
    if table in ("device", "comm"):
        values.setdefault("t_end_ns", T0 + 10**7 * values.get("step", 0))
    whole = [values.get(name, float("nan") if code in "fd" else 0) for name, code in fields]
    return struct.pack("<" + "".join(code for _, code in fields), *whole)


class Builder:
    """A run record in the making. Times of all ranks start at ``T0``."""

    def __init__(
        self, path: Path, command: Sequence[str] = ("python", "train.py"), cpu_count: int = 8
    ):
        self.path = path
        self.writer = RecordWriter.create(
            path, HOST, {"run_id": "r1", "command": list(command), "created_ns": T0}
        )
        self.state: dict[str, Any] = {
            "host": HOST,
            "state": "running",
            "started_ns": T0,
            "cpu_count": cpu_count,
            "memory_total_bytes": 16 << 30,
        }
        self.writer.write_state(self.state)
        self.clock: dict[int, int] = {}
        self.next_step: dict[int, int] = {}

    def hello(self, rank: int = 0, **fields: Any) -> None:
        """What a rank says about itself."""
        base = {"world_size": 1, "host": HOST, "pid": 100 + rank, "device": "cpu"}
        self.event("hello", rank=rank, **{**base, **fields})

    def event(self, kind: str, t_ns: int | None = None, **fields: Any) -> None:
        """One line of events.jsonl."""
        self.writer.append_event({"t_ns": T0 + 1 if t_ns is None else t_ns, "type": kind, **fields})

    def step(
        self, rank: int = 0, n_steps: int = 1, wait_ms: float | None = None, **given: Any
    ) -> None:
        """One step record; phases are given in milliseconds per step as ``forward=3.0``, other
        columns as they are.

        ``wait_ms`` adds it to the backward phase and writes what DDP would say.
        """
        phases = {name: float(given.pop(name, 0.0)) for name in wire.PHASES}
        compute_ms = phases["backward"]
        phases["backward"] += wait_ms or 0.0
        durations = {f"{name}_ns": int(value * 1e6) * n_steps for name, value in phases.items()}
        wall = sum(durations.values())
        end = self.clock[rank] = self.clock.get(rank, T0) + wall
        step = self.next_step[rank] = self.next_step.get(rank, -1) + n_steps
        defaults = {
            "cpu_ns": -1,
            "compute_cpu_ns": -1,
            "allocated_bytes": -1,
            "reserved_bytes": -1,
            "peak_allocated_bytes": -1,
            "rss_bytes": 300 << 20,
            "wall_max_ns": wall // n_steps,
            "flags": wire.F_FIRST if step - n_steps < 0 else 0,
        }
        row = {
            **defaults,
            "t_end_ns": end,
            "wall_ns": wall,
            "step": step,
            "n_steps": n_steps,
            **durations,
            **given,
        }
        self.writer.append_rank("steps", rank, pack("steps", **row))
        if wait_ms is not None:
            self._ddp(rank, end, step, compute_ms, wait_ms)

    def _ddp(self, rank: int, end: int, step: int, compute_ms: float, wait_ms: float) -> None:
        ns = {"backward_compute_ns": int(compute_ms * 1e6), "backward_comm_ns": int(wait_ms * 1e6)}
        row = pack("comm", t_end_ns=end, step=step, wait_ns=int(wait_ms * 1e6), **ns)
        self.writer.append_rank("comm", rank, row)

    def steps(
        self, count: int, rank: int = 0, noise: float = 0.03, seed: int = 0, **phases: float
    ) -> None:
        """``count`` steps whose phases vary by ``noise`` (relative, gamma-distributed)."""
        random = np.random.default_rng(seed + 1000 * rank)
        for _ in range(count):
            self.step(
                rank, **{k: v * random.gamma(1 / noise**2, noise**2) for k, v in phases.items()}
            )

    def sample(self, table: str, **values: Any) -> None:
        """One record of ``gpu``, ``host`` or ``process``."""
        self.writer.append_host(table, pack(table, **values))

    def end(self, exit_code: int = 0, signal: int | None = None) -> None:
        """The command ends."""
        now = max(self.clock.values(), default=T0)
        self.state.update(state="ended", exit_code=exit_code, ended_ns=now, signal=signal)
        self.writer.write_state(self.state)

    def open(self) -> RunRecord:
        """The record as a reader sees it."""
        return RunRecord.open(self.path)
