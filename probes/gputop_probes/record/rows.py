"""Which rows of a table can be true: a row carries its own check, and rows follow each other in
time.

The phases of a step add up to its wall time to the nanosecond, what is measured has a range, time
grows, and within a process step indices grow too. What breaks this is damage, and is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_agent import wire
from gputop_agent.contracts.kinds import EARLIEST_NS, LATEST_NS
from gputop_probes.record.one_row import LONGEST_NS

Table = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Range = tuple[float, float]

CHUNK = 4096
"""Rows that are checked at once: they fit into a core's cache."""
_MEMORY = (-1, 2**46)
_DEVICE_MEMORY = (-1, 2**43)
_COUNTER = (-1, 2**62)
_ANY_INT = (-(2**63), 2**63 - 1)
_PER_STEP_AT_MOST = 4096
"""Times the median row: more samples or tokens a step than that are no batch of this run."""
_APART_NS = 60 * 10**9
"""Between steps that follow each other without a gap in their index."""
_SHORTEST_NS = 1000
"""No step is shorter: where more are missing between rows than fit, an index is wrong."""
_DURATION = (0, LONGEST_NS)
_MS = (0, 1e12)

_RANGES: dict[str, dict[str, Range]] = {
    "steps": {
        **{f"{name}_ns": _DURATION for name in (*wire.PHASES, "wall", "wall_max", "gc", "agent")},
        "cpu_ns": (-1, LONGEST_NS),
        "compute_cpu_ns": (-1, LONGEST_NS),
        **dict.fromkeys(
            ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes"), _DEVICE_MEMORY
        ),
        "n_steps": (1, 10**9),
        "flags": (0, 2**20),
    },
    "device": {
        f"{name}_ms": _MS
        for name in ("data", "h2d", "forward", "backward", "optimizer", "other", "total")
    },
    "comm": {
        **dict.fromkeys(
            ("forward_ns", "backward_compute_ns", "backward_comm_ns", "overlap_ns"),
            (-1, LONGEST_NS),
        ),
        "wait_ns": _DURATION,
        "source": (0, 255),
    },
    "gpu": {
        "index": (0, 4096),
        "pstate": (-1, 64),
        "pcie_gen": (-1, 64),
        "pcie_width": (-1, 256),
        "power_w": (-1, 20_000),
        "power_limit_w": (-1, 20_000),
        "temperature_c": (-100, 300),
        "memory_temperature_c": (-100, 300),
        "sm_clock_mhz": (-1, 20_000),
        "sm_clock_max_mhz": (-1, 20_000),
        "memory_clock_mhz": (-1, 50_000),
        "memory_used_bytes": _DEVICE_MEMORY,
        "memory_total_bytes": _DEVICE_MEMORY,
        "memory_ours_bytes": _DEVICE_MEMORY,
        "memory_foreign_bytes": _DEVICE_MEMORY,
    },
    "host": {
        "cpu_count": (-1, 2**20),
        "process_count": (-1, 2**24),
        "load_1m": (-1, 1e6),
        "cgroup_cpu_limit": (-1, 2**20),
        "cgroup_memory_max_bytes": _ANY_INT,
    },
    "process": {
        "pid": (-1, 2**30),
        "ppid": (-1, 2**30),
        "rank": (-1, wire.MAX_RANK),
        "kind": (-1, 64),
        "threads": (-1, 2**24),
        "state": (-1, 255),
        "open_files": (-1, 2**31),
    },
}
_BY_ENDING: tuple[tuple[str, Range], ...] = (
    ("_bytes_total", _COUNTER),
    ("_total", _COUNTER),
    ("_bytes", _MEMORY),
    ("_pct", (-1, 400)),
    ("_mb_s", (-1, 1e8)),
)
_TIMES = ("t_end_ns", "t_ns")
_KEYS = {"gpu": "index", "process": "pid"}
"""Column that tells apart what is sampled at each tick."""


def sound(table: str, rows: Table) -> Mask:
    """Mask of the rows that can be true.

    Args:
        table: name in ``layout.TABLES``.
        rows: consecutive rows of a file, in the order written.
    """
    mask = np.ones(len(rows), bool)
    for begin in range(0, len(rows), CHUNK):
        mask[begin : begin + CHUNK] = _plausible(table, rows[begin : begin + CHUNK])
    if table == "steps":
        _leave_out_odd_counts(rows, mask)
    places = np.flatnonzero(mask)
    if len(places) > 1:
        good = rows if len(places) == len(rows) else rows.take(places)
        mask[places] = _in_order(table, good)
    return mask


def _plausible(table: str, rows: Table) -> Mask:
    """Rows whose every column lies in its range and whose parts add up."""
    bad = np.zeros(len(rows), bool)
    for first, names, code in _blocks(rows.dtype):
        low, high = _limits(table, names, code)
        shape, strides = (len(rows), len(names)), (rows.strides[0], np.dtype(code).itemsize)
        values = np.ndarray(shape, code, buffer=rows, offset=first, strides=strides)
        bad |= ((values < low) | (values > high)).any(axis=1)  # NaN is neither: it was not measured
        if table == "steps" and "wall_ns" in names:
            at = [names.index(f"{name}_ns") for name in wire.PHASES]
            first_phase, last_phase = min(at), max(at) + 1
            bad |= (
                values[:, first_phase:last_phase].sum(axis=1) != values[:, names.index("wall_ns")]
            )
    if table == "steps":
        bad |= rows["step"].astype(np.int64) + 1 < rows["n_steps"]
        for name in ("wall_max_ns", "gc_ns", "agent_ns", "cpu_ns", "compute_cpu_ns"):
            bad |= rows[name] > rows["wall_ns"] * 1.1 + 5e7
    if table == "gpu":
        bad |= (rows["memory_total_bytes"] > 0) & (
            rows["memory_used_bytes"] > rows["memory_total_bytes"] * 1.01
        )
    if table == "host":
        bad |= (rows["memory_total_bytes"] > 0) & (
            rows["memory_available_bytes"] > rows["memory_total_bytes"]
        )
    return ~bad


@cache
def _blocks(dtype: np.dtype[Any]) -> list[tuple[int, list[str], str]]:
    """Columns of a type side by side: offset, names, type. Looked at as one matrix."""
    blocks: list[tuple[int, list[str], str]] = []
    end = -1
    for name in dtype.names or ():
        column, offset = dtype.fields[name][:2]  # type: ignore[index]
        if blocks and blocks[-1][2] == column.str and end == offset:
            blocks[-1][1].append(name)
        else:
            blocks.append((offset, [name], column.str))
        end = offset + column.itemsize
    return blocks


_known_limits: dict[tuple[str, tuple[str, ...]], tuple[Table, Table]] = {}


def _limits(table: str, names: list[str], code: str) -> tuple[Table, Table]:
    key = (table, tuple(names))
    if key not in _known_limits:
        ranges = [_range(table, name, code) for name in names]
        _known_limits[key] = tuple(np.array(side, code) for side in zip(*ranges, strict=True))  # type: ignore[assignment]
    return _known_limits[key]


def _range(table: str, name: str, code: str) -> Range:
    if name in _TIMES:
        return EARLIEST_NS, LATEST_NS
    limits_ = _RANGES.get(table, {}).get(name)
    if limits_ is None:
        limits_ = next((limits for ending, limits in _BY_ENDING if name.endswith(ending)), None)
    dtype = np.dtype(code)
    if dtype.kind == "f":
        return limits_ or (-np.inf, np.inf)
    widest = np.iinfo(dtype)
    low, high = limits_ or (widest.min, widest.max)
    return max(low, widest.min), min(high, widest.max)


def _leave_out_odd_counts(rows: Table, mask: Mask) -> None:
    """Clear the mask where a row counts far more a step than the others do."""
    if not mask.any():
        return
    steps = np.maximum(rows["n_steps"], 1)
    for name in ("samples", "tokens", "micro_batches", "optimizer_steps"):
        per_step = rows[name] / steps
        if per_step.max() <= _PER_STEP_AT_MOST:  # so is it whatever is usual
            continue
        usual = float(np.median(per_step[mask]))
        mask &= per_step <= max(usual, 1.0) * _PER_STEP_AT_MOST


def _in_order(table: str, rows: Table) -> Mask:
    """Rows that follow each other; where they don't, the most that do."""
    if table != "steps":
        return _each_in_time(table, rows)
    mask = np.ones(len(rows), bool)
    time = rows["t_end_ns"]
    step = rows["step"].astype(np.int64)
    before = step - rows["n_steps"]
    begins = (before == -1) | ((rows["flags"] & wire.F_FIRST) != 0)
    begins[0] = True
    breaks = ~begins[1:] & ((np.diff(time) < 0) | (before[1:] < step[:-1]))
    if breaks.any():
        edges = [*np.flatnonzero(begins).tolist(), len(rows)]
        for first, end in pairwise(edges):
            if breaks[first : end - 1].any():
                part = slice(first, end)
                mask[part] = _longest_growing(time[part])
                places = first + np.flatnonzero(mask[part])
                mask[places] = _longest_growing(step[places])
    _judge_ends(time, step, before, rows["wall_ns"], mask)
    return mask


def _each_in_time(table: str, rows: Table) -> Mask:
    """Rows of each device or process in the order of times; else the most that are."""
    time = rows["t_end_ns" if table in ("device", "comm") else "t_ns"]
    mask = np.ones(len(rows), bool)
    if not (np.diff(time) < 0).any():
        return mask
    key = _KEYS.get(table)
    if key:
        order = np.argsort(rows[key], kind="stable")
    else:
        order = np.arange(len(rows))
    edges = np.flatnonzero(np.diff(rows[key][order])) + 1 if key else []
    for part in np.split(order, edges):
        mask[part] = _longest_growing(time[part])
    return mask


def _judge_ends(time: Table, step: Table, before: Table, wall: Table, mask: Mask) -> None:
    """Clear the first and last row where only it disagrees with its neighbour."""
    places = np.flatnonzero(mask)
    if len(places) < 2:
        return
    for odd, first, other in (
        (places[0], places[0], places[1]),
        (places[-1], places[-2], places[-1]),
    ):
        gap_ns = int(time[other]) - int(wall[other]) - int(time[first])
        steps_missing = int(before[other]) - int(step[first])
        jumped = steps_missing > 0 and gap_ns < steps_missing * _SHORTEST_NS
        torn_apart = steps_missing == 0 and before[other] >= 0 and abs(gap_ns) > _APART_NS
        if jumped or torn_apart:
            mask[odd] = False


def _longest_growing(values: Table) -> Mask:
    """Mask of a longest rising subsequence (patience sorting): fewest rows are damaged."""
    tops: list[int] = []
    top_places: list[int] = []
    previous = np.full(len(values), -1, np.int64)
    for index, value in enumerate(values.tolist()):
        at = bisect_right(tops, value)
        if at:
            previous[index] = top_places[at - 1]
        if at == len(tops):
            tops.append(value)
            top_places.append(index)
        else:
            tops[at], top_places[at] = value, index
    mask = np.zeros(len(values), bool)
    index = top_places[-1] if top_places else -1
    while index >= 0:
        mask[index] = True
        index = int(previous[index])
    return mask
