"""Adds GPU figures to the record of a real run on CPUs, for show: one device a rank.

They follow the rank's real steps and nothing else, so the same record always gets the same figures:
a GPU is busy but for data and pauses, draws much while its rank computes and little while that
waits in a sum, and grows warm and cool with what it draws. Each device is marked as added in
``host.json``; readers show the mark and judge nothing by the figures.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gputop_probes.record import layout
from gputop_probes.record.reader import RunRecord

Array = npt.NDArray[Any]

NAME = "NVIDIA H100 80GB HBM3"
MEMORY_TOTAL_BYTES = 81_559 << 20
LIMIT_W, IDLE_W, WAITING_W, COMPUTING_W = 700.0, 74.0, 190.0, 640.0
CLOCK_MAX_MHZ, CLOCK_IDLE_MHZ = 1980.0, 345.0
COOL_C, C_PER_W, WARM_UP_S = 27.0, 0.058, 14.0
SLOT_C = (0.0, 2.0, 5.0, 3.0, 1.0, 0.0, 4.0, 6.0)
"""How much warmer the air is at each place of the chassis."""
CONTEXT_BYTES, WEIGHTS_BYTES, FULL_BYTES = 620 << 20, 22_400 << 20, 77_300 << 20
UNLIKE_BYTES = 310 << 20
"""Between the fullest device and the next."""
WINDOW_S = 5.0
GPU_SECONDS = ("forward_ns", "backward_ns", "optimizer_ns", "eval_ns")
COMPUTE_SCALE = 6.0
"""A CPU's computing without waiting is a small part of these steps; a device that drew power by it
alone would seem to idle."""


class Share(NamedTuple):
    """Of a time: in which the device would have had work, and in which its rank computed."""

    busy: float
    computing: float


def add(run_dir: Path) -> None:
    """Write ``gpu.bin`` and the devices of ``host.json`` of a record on one host."""
    record = RunRecord.open(run_dir)
    (host,) = record.hosts.values()
    ticks = host.host.rows["t_ns"]
    rows: list[tuple[int, int, bytes]] = []
    for rank in record.ranks():
        rows += [(t_ns, rank, row) for t_ns, row in _of_rank(record, rank, ticks)]
    path = layout.host_dir(run_dir, host.name)
    (path / "gpu.bin").write_bytes(b"".join(row for _, _, row in sorted(rows)))
    state = json.loads((path / "host.json").read_text())
    state["gpus"] = [_described(rank) for rank in record.ranks()]
    (path / "host.json").write_text(json.dumps(state, indent=1))


def _described(rank: int) -> dict[str, Any]:
    return {
        "index": rank,
        "name": NAME,
        "memory_total_bytes": MEMORY_TOTAL_BYTES,
        "ours": True,
        "added": True,
        "rank": rank,
    }


def _of_rank(record: RunRecord, rank: int, ticks: Array) -> list[tuple[int, bytes]]:
    """Time and row of each sample of the rank's device."""
    steps, waits = record.steps(rank), record.comm(rank)
    slot_c = SLOT_C[rank % len(SLOT_C)]
    warm_c, before_ns = COOL_C + slot_c + C_PER_W * IDLE_W, int(ticks[0])
    rows = []
    for t_ns in ticks.tolist():
        share = _share(steps, waits, t_ns)
        power_w = IDLE_W + (WAITING_W - IDLE_W) * share.busy
        power_w += (COMPUTING_W - WAITING_W) * share.computing
        steady_c = COOL_C + slot_c + C_PER_W * power_w
        lag = 1 - math.exp(-(t_ns - before_ns) / 1e9 / WARM_UP_S)
        warm_c, before_ns = warm_c + (steady_c - warm_c) * lag, t_ns
        values = {
            "t_ns": t_ns,
            "index": rank,
            "memory_total_bytes": MEMORY_TOTAL_BYTES,
            "memory_used_bytes": _memory(steps, rank, t_ns),
            "util_pct": round(100 * share.busy),
            "power_w": round(power_w),
            "power_limit_w": LIMIT_W,
            "temperature_c": round(warm_c),
            "sm_clock_mhz": CLOCK_MAX_MHZ if share.busy else CLOCK_IDLE_MHZ,
            "sm_clock_max_mhz": CLOCK_MAX_MHZ,
        }
        rows.append((t_ns, _packed(values)))
    return rows


def _share(steps: Array, waits: Array, until_ns: int) -> Share:
    """How the steps that ended in the last seconds were spent."""
    recent = _ended_within(steps, until_ns)
    wall_ns = int(recent["wall_ns"].sum())
    if not wall_ns:
        return Share(0.0, 0.0)
    busy_ns = sum(int(recent[name].sum()) for name in GPU_SECONDS)
    wait_ns = int(np.maximum(_ended_within(waits, until_ns)["wait_ns"], 0).sum())
    computing = COMPUTE_SCALE * max(busy_ns - wait_ns, 0) / wall_ns
    return Share(busy_ns / wall_ns, min(computing, busy_ns / wall_ns))


def _ended_within(rows: Array, until_ns: int) -> Array:
    ends = rows["t_end_ns"]
    first, last = np.searchsorted(ends, (until_ns - int(WINDOW_S * 1e9), until_ns))
    return rows[first:last]


def _memory(steps: Array, rank: int, t_ns: int) -> int:
    """Nothing, then weights, and all that the allocator keeps from the third step on."""
    done = int(np.searchsorted(steps["t_end_ns"], t_ns))
    if not done:
        return CONTEXT_BYTES
    full = FULL_BYTES - (5 * rank) % 8 * UNLIKE_BYTES
    return WEIGHTS_BYTES if done < 3 else full


def _packed(values: dict[str, float]) -> bytes:
    missing = {"q": -1, "i": -1, "f": math.nan}
    return layout.GPU.pack(*(values.get(name, missing[code]) for name, code in layout.GPU_FIELDS))
