"""Writes large run records fast: many ranks, many steps, DDP's timers, processes, devices, a hello
from each rank.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from analysis_support import HOST, T0, Builder, pack

from gputop_agent import wire
from gputop_probes.record import layout
from gputop_probes.record.reader import RunRecord, numpy_dtype

CHUNK = 100_000
STEP_NS = 25_000_000


def write(path: Path, steps: int, ranks: int, sampled_s: int = 60) -> RunRecord:
    """A run of ``ranks`` ranks whose last step is ``steps - 1``; rank 3 is 8 % slow in forward, the
    others wait.
    """
    builder = Builder(path, command=["torchrun", "train.py"], cpu_count=64)
    for rank in range(ranks):
        builder.event("rank_start", rank=rank, pid=100 + rank, record_index=0, attempt=0)
        builder.hello(rank, world_size=ranks, **_HELLO)
        _write_rank(builder, rank, steps)
    for tick in range(sampled_s):
        t_ns = T0 + steps * STEP_NS - (sampled_s - tick) * 10**9
        rows = b"".join(_process(t_ns, (t_ns - T0) // 10**9, rank) for rank in range(ranks))
        builder.writer.append_host("process", rows)
        builder.sample(
            "host", t_ns=t_ns, cpu_pct=30.0, cpu_count=64, memory_total_bytes=2**38, load_1m=20.0
        )
    return builder.open()


def extend(path: Path, first: int, count: int, ranks: int) -> int:
    """The same run ``count`` steps later: rows at the end of each rank's files. Returns the number
    of steps then.
    """
    random = np.random.default_rng(first)
    for rank in range(ranks):
        for table, rows in (
            ("steps", _steps(rank, first, count, random)),
            ("comm", _comm(rank, first, count, random)),
        ):
            with (path / table / f"rank-{rank:05d}.bin").open("ab") as file:
                file.write(rows.tobytes())
    sampled_s, until_ns = count * STEP_NS // 10**9, T0 + (first + count) * STEP_NS
    with (path / "hosts" / HOST / "process.bin").open("ab") as file:
        for tick in range(sampled_s):
            t_ns = until_ns - (sampled_s - 1 - tick) * 10**9
            file.write(
                b"".join(_process(t_ns, (t_ns - T0) // 10**9, rank) for rank in range(ranks))
            )
    return first + count


_HELLO = {
    "device": "cpu",
    "total_steps": 2_000_000,
    "model": {"class": "GPT", "parameters": 124_000_000, "trainable": 124_000_000},
    "optimizer": {"class": "AdamW", "fused": True, "lr": 3e-4},
    "dataloader": {
        "num_workers": 4,
        "batch_size": 8,
        "pin_memory": True,
        "site": "train.py:41 main",
    },
    "parallel": {"backend": "gloo", "ddp": {"bucket_cap_mb": 25}},
}


def _write_rank(builder: Builder, rank: int, steps: int) -> None:
    random = np.random.default_rng(rank)
    for table, make in (("steps", _steps), ("comm", _comm)):
        for first in range(0, steps, CHUNK):
            count = min(CHUNK, steps - first)
            builder.writer.append_rank(table, rank, make(rank, first, count, random).tobytes())


def _empty(table: str, count: int) -> np.ndarray:
    rows = np.zeros(
        count, numpy_dtype([(n, t) for n, t in layout.dtype_description(layout.TABLES[table])])
    )
    for name, code in layout.TABLES[table]:
        if code in "fd":
            rows[name] = np.nan
    return rows


def _steps(rank: int, first: int, count: int, random: np.random.Generator) -> np.ndarray:
    rows, late = _empty("steps", count), 500_000 if rank == 3 else 0
    noise = 1 + 0.03 * random.standard_normal(count)
    rows["forward_ns"] = 6_000_000 * noise + late
    rows["backward_ns"] = 12_000_000 * noise + 500_000 - late
    rows["optimizer_ns"] = 2_000_000
    rows["data_ns"] = 100_000
    rows["other_ns"] = 300_000
    rows["wall_ns"] = sum(rows[f"{name}_ns"] for name in wire.PHASES)
    rows["wall_max_ns"] = rows["wall_ns"]
    rows["step"] = np.arange(first, first + count)
    rows["t_end_ns"] = T0 + (rows["step"].astype(np.int64) + 1) * STEP_NS
    rows["loss"] = 2.0 + 3.0 / (1 + rows["step"] / 1e4) + 0.02 * random.standard_normal(count)
    rows["loss_max"], rows["grad_norm"], rows["lr"] = (
        rows["loss"],
        1.0 + 0.1 * random.random(count),
        3e-4,
    )
    for name in (
        "cpu_ns",
        "compute_cpu_ns",
        "allocated_bytes",
        "reserved_bytes",
        "peak_allocated_bytes",
    ):
        rows[name] = -1
    rows["rss_bytes"] = 2 << 30
    for name, value in (
        ("n_steps", 1),
        ("samples", 8),
        ("tokens", 8192),
        ("micro_batches", 1),
        ("optimizer_steps", 1),
    ):
        rows[name] = value
    if first == 0:
        rows["flags"][0] = wire.F_FIRST
    return rows


def _comm(rank: int, first: int, count: int, random: np.random.Generator) -> np.ndarray:
    """DDP's timers, one step in a hundred."""
    rows = _empty("comm", len(range(first, first + count, 100)))
    rows["step"] = np.arange(first, first + count, 100)
    rows["t_end_ns"] = T0 + (rows["step"].astype(np.int64) + 1) * STEP_NS
    rows["wait_ns"] = 300_000 if rank == 3 else 800_000 + 20_000 * random.standard_normal(len(rows))
    rows["backward_compute_ns"], rows["backward_comm_ns"] = 11_000_000, 5_000_000
    return rows


def _process(t_ns: int, tick: int, rank: int) -> bytes:
    return pack(
        "process",
        t_ns=t_ns,
        pid=100 + rank,
        rank=rank,
        kind=layout.PROCESS_RANK,
        cpu_ns_total=tick * 10**9,
        thread_cpu_ns_total=tick * 9 * 10**8,
        run_wait_ns_total=tick * 10**6,
        rss_bytes=2 << 30,
        pss_bytes=-1,
        threads=8,
        state=ord("R"),
    )
