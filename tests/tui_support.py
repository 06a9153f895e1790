"""Deterministic records and snapshots for the tests of the screen."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from gputop.feed.pages import PageReader
from gputop.feed.snapshot import Snapshot
from gputop_agent import wire
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_probes.record import layout
from gputop_probes.record.reader import RunRecord
from gputop_probes.record.writer import RecordWriter

START_NS = 1_700_000_000 * 10**9
STEP_MS = {
    "data": 1.9,
    "h2d": 0.2,
    "forward": 4.1,
    "backward": 7.4,
    "optimizer": 1.3,
    "comm": 0.6,
    "other": 0.4,
}
GIB = 1 << 30


class FixedClock:
    """A clock that moves only when told to."""

    def __init__(self, now_ns: int = START_NS + 100 * 10**9):
        self.at_ns = now_ns

    def now_ns(self) -> int:
        return self.at_ns

    def monotonic(self) -> float:
        return self.at_ns / 1e9

    def cpu_s(self) -> float:
        return 0.0

    def advance(self, seconds: float) -> None:
        self.at_ns += int(seconds * 1e9)


def pack(record: struct.Struct, fields: layout.Fields, values: dict[str, float]) -> bytes:
    """One record; what is not given was not measured (NaN or -1), counters are 0."""
    row = []
    for name, code in fields:
        default = (
            float("nan") if code in "fd" else 0 if code == "I" or name.endswith("_total") else -1
        )
        row.append(values.get(name, default))
    return record.pack(*row)


def step_row(
    rank: int, step: int, t_end_ns: int, phases_ms: dict[str, float], **more: float
) -> bytes:
    """One STEP record whose phases add up to its wall time."""
    phases = {name: round(phases_ms.get(name, 0.0) * 1e6) for name in wire.PHASES}
    values: dict[str, float] = {f"{name}_ns": ns for name, ns in phases.items()}
    values |= {
        "t_end_ns": t_end_ns,
        "wall_ns": sum(phases.values()),
        "wall_max_ns": sum(phases.values()),
    }
    values |= {
        "step": step,
        "n_steps": 1,
        "samples": 16,
        "tokens": 16 * 64,
        "micro_batches": 1,
        "optimizer_steps": 1,
    }
    values |= {
        "gc_ns": 0,
        "agent_ns": 0,
        "rss_bytes": int((0.6 + 0.01 * rank) * GIB),
        "lr": 3e-4,
        "grad_norm": 1.25,
    }
    values |= {"loss": 4.0 * math.exp(-step / 300) + 1.2}
    return pack(wire.STEP, wire.STEP_FIELDS, values | more)


def write_run(
    folder: Path,
    ranks: int = 1,
    steps: int = 400,
    gpus: int = 0,
    state: str = "ended",
    exit_code: int | None = 0,
    slow_rank: int | None = None,
    spike_at: int | None = None,
    total_steps: int | None = None,
    nan_from: int | None = None,
    standing_s: int = 0,
    command: tuple[str, ...] = ("python", "train.py", "--batch", "16"),
    recording: str | None = None,
    start_ns: int = START_NS,
    gpu_note: str = "no NVIDIA driver here: GPU panels are off; `gputop doctor` tells more",
) -> Path:
    """A record of a well-behaved run, or of one with a slow rank; every byte follows from the
    arguments.
    """
    manifest = {
        "run_id": "test",
        "name": "test",
        "command": list(command),
        "created_ns": start_ns,
        "recording": recording,
    }
    writer = RecordWriter.create(folder, "box", manifest)
    end_ns = start_ns
    for rank in range(ranks):
        writer.append_event(hello(rank, ranks, total_steps, gpus, start_ns))
        at_ns, rows, comm = start_ns + 2 * 10**9, [], []
        for step in range(steps):
            phases = _phases_of(rank, step, ranks, slow_rank)
            at_ns += round(sum(phases.values()) * 1e6)
            flags = wire.F_FIRST if step == 0 else 0
            more = _memory(rank) if gpus else {}
            if spike_at is not None and step in (spike_at, spike_at + 1):
                more |= {"loss": 6.4, "loss_max": 6.4, "grad_norm": 9.5}
            if nan_from is not None and step >= nan_from:
                more |= {"loss": math.nan, "loss_max": math.nan}
                flags |= wire.F_NONFINITE
            rows.append(step_row(rank, step, at_ns, phases, flags=flags, **more))
            wait = 0.5 if rank == slow_rank else 5.5 if slow_rank is not None else 0.4
            if ranks > 1:
                values = {
                    "t_end_ns": at_ns,
                    "step": step,
                    "source": wire.COMM_DDP,
                    "wait_ns": round(wait * 1e6),
                }
                values |= {
                    "backward_compute_ns": round(6e6),
                    "forward_ns": round(4e6),
                    "overlap_ns": round(1e6),
                }
                values |= {"backward_comm_ns": round((wait + 1) * 1e6)}
                comm.append(pack(wire.COMM, wire.COMM_FIELDS, values))
        writer.append_rank("steps", rank, b"".join(rows))
        if comm:
            writer.append_rank("comm", rank, b"".join(comm))
        end_ns = max(end_ns, at_ns)
    end_ns += standing_s * 10**9
    _write_samples(writer, start_ns, end_ns, gpus, ranks)
    writer.write_state(_state(state, exit_code, start_ns, end_ns, gpus, gpu_note))
    (folder / "hosts" / "box" / "output.log").write_bytes(output_bytes())
    writer.close()
    return folder


def hello(
    rank: int, ranks: int, total_steps: int | None, gpus: int, start_ns: int
) -> dict[str, object]:
    """What a rank says of itself."""
    return {
        "t_ns": start_ns + 10**9,
        "type": "hello",
        "rank": rank,
        "host": "box",
        "pid": 100 + rank,
        "world_size": ranks,
        "total_steps": total_steps,
        "device": f"cuda:{rank % gpus}" if gpus else "cpu",
        "device_index": rank % gpus if gpus else None,
        "optimizer": {"class": "AdamW"},
        "dataloader": {"batch_size": 16, "num_workers": 2},
    }


def _phases_of(rank: int, step: int, ranks: int, slow_rank: int | None) -> dict[str, float]:
    """Milliseconds with a small, repeatable unrest; every 50th step a pause."""
    wave = 1 + 0.06 * math.sin(step / 7.0) + 0.03 * ((step * 7919 + rank * 104729) % 97 / 97 - 0.5)
    phases = {name: value * wave for name, value in STEP_MS.items()}
    if slow_rank is not None:
        phases["data" if rank == slow_rank else "backward"] += 5.0
    if step and step % 50 == 0:
        phases["other"] += 6.0
    return phases


def _memory(rank: int) -> dict[str, float]:
    allocated = round((52.3 + rank * 0.4) * GIB)
    return {
        "allocated_bytes": allocated,
        "reserved_bytes": round(66.1 * GIB),
        "peak_allocated_bytes": round(63.2 * GIB),
    }


def _write_samples(writer: RecordWriter, start_ns: int, end_ns: int, gpus: int, ranks: int) -> None:
    for second in range(int((end_ns - start_ns) / 1e9) + 1):
        at_ns = start_ns + second * 10**9
        host = {"t_ns": at_ns, "memory_total_bytes": 32 * GIB, "memory_available_bytes": 19 * GIB}
        host |= {
            "cpu_pct": 62 + 20 * math.sin(second / 3),
            "cpu_count": 8,
            "process_count": ranks + 1,
        }
        host |= {
            "disk_read_bytes_total": second * 4_000_000,
            "disk_write_bytes_total": second * 900_000,
        }
        host |= {"tree_rss_bytes": 2 * GIB}
        writer.append_host("host", pack(layout.HOST, layout.HOST_FIELDS, host))
        for index in range(gpus):
            gpu = {
                "t_ns": at_ns,
                "index": index,
                "memory_total_bytes": 80 * GIB,
                "memory_used_bytes": 68 * GIB,
            }
            gpu |= {
                "util_pct": 88 + 9 * math.sin(second / 2 + index),
                "power_w": 412 + 5 * index,
                "power_limit_w": 700,
            }
            gpu |= {"temperature_c": 61 + index, "sm_clock_mhz": 1755, "sm_clock_max_mhz": 1980}
            writer.append_host("gpu", pack(layout.GPU, layout.GPU_FIELDS, gpu))


def _state(
    state: str, exit_code: int | None, start_ns: int, end_ns: int, gpus: int, gpu_note: str
) -> dict[str, object]:
    infos = [
        {"index": i, "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 80 * GIB}
        for i in range(gpus)
    ]
    ended = {"ended_ns": end_ns, "exit_code": exit_code} if state == "ended" else {}
    note = "" if gpus else gpu_note
    head = {
        "host": "box",
        "state": state,
        "started_ns": start_ns,
        "cpu_count": 8,
        "memory_total_bytes": 32 * GIB,
    }
    return {**head, "gpus": infos, "gpu_note": note, **ended}


def output_bytes() -> bytes:
    """Some log lines with colour, and a progress bar that was redrawn."""
    lines = [
        f"\x1b[32mINFO\x1b[0m step {i:>4} loss {4 / (1 + i / 90):.3f} lr 3.0e-04"
        for i in range(0, 400, 20)
    ]
    bar = "\r".join(
        f"training: {p:>3}% |{'#' * (p // 5):<20}| {p * 4}/400" for p in range(0, 101, 5)
    )
    return ("\n".join(lines) + "\n" + bar).encode()


def a_finding(severity: Severity = "high", rank: int | None = 2, **more: Any) -> Finding:
    """A finding with everything filled in."""
    values: dict[str, Any] = {
        "id": "IN01",
        "name": "input-bound",
        "severity": severity,
        "title": "data wait takes 34 % of each step, 4.2 ms",
        "evidence": "data 4.2 ms of 12.4 ms a step (95 %: 31 to 37 %) over 400 steps",
        "fix": "DataLoader(num_workers=2, persistent_workers=True, prefetch_factor=4)",
        "rank": rank,
        "site": "train.py:41 batches",
        "recoverable_ms_per_step": 4.2,
        "interval_ms_per_step": (3.9, 4.5),
        "recoverable_hours": 1.6,
        "proof": a_proof(),
    }
    return Finding(**(values | more))


def a_proof(data_ms: float = 4.2, step_ms: float = 12.4) -> Proof:
    """A statistic with its threshold and what it was computed from."""
    source = "steps.data_ns, rank 2, 390 steady steps"
    return Proof(
        statistic="lower end of the 95 % interval of data wait / step time",
        value=31.2,
        threshold=10.0,
        unit="%",
        formula="recoverable = sum(data wait) / steps",
        inputs=(
            Input("data wait", data_ms, "ms", source),
            Input("step time", step_ms, "ms", "steps.wall_ns, the same steps"),
        ),
    )


def of_slow_rank() -> Finding:
    """What is found in a run of ``write_run`` whose rank 2 is slow."""
    return a_finding(
        title="rank 2 waits for data 33 % of each step, 6.9 ms",
        evidence="data 6.9 ms of 21.0 ms a step on rank 2 (95 %: 31 to 35 %), 1.9 ms on the others",
        recoverable_ms_per_step=5.0,
        interval_ms_per_step=(4.8, 5.2),
        recoverable_hours=None,
        proof=a_proof(6.9, 21.0),
    )


class StillFeed:
    """A feed that shows one snapshot, then whatever ``next`` is set to; pages are read from the
    snapshot's record.
    """

    def __init__(self, snapshot: Snapshot):
        self.next = snapshot
        self.pages = PageReader(FixedClock())

    def first(self) -> Snapshot:
        return self.next

    def take(self) -> Snapshot:
        if self.pages.wanted is None:
            return self.next
        return self.next._replace(
            page=self.pages.read(RunRecord.open(self.next.run_dir), self.next, moved=False)
        )


class FakeControl:
    """A command that runs until it is told to stop."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.running = True

    def interrupt(self) -> None:
        self.asked.append("interrupt")

    def kill(self) -> None:
        self.asked.append("kill")
        self.running = False

    def alive(self) -> bool:
        return self.running

    def exit_code(self) -> int | None:
        return None if self.running else 130

    def stopping(self) -> bool:
        return False

    def layers(self) -> None:
        self.asked.append("layers")

    def suspend(self) -> None:
        self.asked.append("suspend")

    def resume(self) -> None:
        self.asked.append("resume")

    def profile(self, steps: int) -> None:
        self.asked.append(f"profile {steps}")

    def waits_for_input(self) -> bool:
        return False

    def hand_over(self) -> None:
        pass

    def dump(self) -> None:
        self.asked.append("dump")


WEIGHTY = ("embed", "up")
"""The made-up layers that have weights."""


def write_layers(folder: Path) -> None:
    """Add the looks at a model's layers to a record: four blocks, of which the third is slow; they
    take what forward and backward take in ``STEP_MS``.
    """
    paths = ["", "embed"]
    kinds = ["Model", "Embedding"]
    for block in range(4):
        paths += [f"blocks.{block}", f"blocks.{block}.up"]
        kinds += ["Block", "Linear"]
    rows = [
        {"path": path, "class": kind, "parameter_bytes": 4 << 20 if path.endswith(WEIGHTY) else 0}
        for path, kind in zip(paths, kinds, strict=True)
    ]
    writer = RecordWriter(folder, "box")
    writer.append_event(
        {
            "type": "layer_table",
            "t_ns": START_NS + 3 * 10**9,
            "rank": 0,
            "first": 0,
            "count": len(rows),
            "rows": rows,
        }
    )
    forward_us = [70, 60, *[30, 600] * 2, 30, 1800, 30, 600]
    for step in (12, 14, 16):
        look = {"type": "layers", "rank": 0, "step": step, "first": 0, "clock": "host"}
        look |= {"forward_us": forward_us, "backward_us": [1.8 * us for us in forward_us]}
        look |= {"calls": [1] * len(rows), "forward_ms": 4.1, "backward_ms": 7.4}
        look |= {"outside_forward_ms": 0.2, "outside_backward_ms": 0.4}
        writer.append_event({**look, "t_ns": START_NS + (3 + step) * 10**8})
    writer.close()
