"""A run as CSV or JSON, for other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from gputop_agent import wire
from gputop_analysis.report import finite, report_data
from gputop_probes.record.layout import STEP_BYTES
from gputop_probes.record.reader import RunRecord

_ROWS_AT_ONCE = 10_000
_PLAIN = (
    "loss",
    "grad_norm",
    "lr",
    "loss_scale",
    "samples",
    "tokens",
    "micro_batches",
    "optimizer_steps",
    "flags",
)
COLUMNS = (
    "rank",
    "step",
    "n_steps",
    "t_end_s",
    "wall_ms",
    *(f"{name}_ms" for name in wire.PHASES),
    "wall_max_ms",
    "gc_ms",
    *STEP_BYTES,
    *_PLAIN,
)
"""CSV header. Durations are sums over the record's ``n_steps`` steps; ``t_end_s`` is Unix time."""


def to_csv(record: RunRecord, rank: int | None = None) -> Iterator[str]:
    """Header and a line per step record, of one rank or of all; what was not measured is empty."""
    yield ",".join(COLUMNS)
    for some_rank in record.ranks() if rank is None else [rank]:
        rows = record.steps(some_rank)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            for row in np.asarray(rows[start : start + _ROWS_AT_ONCE]):
                yield ",".join(_cells(some_rank, row))


def to_json(record: RunRecord) -> str:
    """The report with what each rank said about itself and every event, as one JSON object."""
    data = report_data(record)
    data["manifest"] = record.manifest.model_dump(exclude={"tables"})
    data["hello"] = {str(rank): record.hello(rank) for rank in record.ranks()}
    data["events"] = sorted(record.events(), key=lambda event: event.get("t_ns", 0))
    return json.dumps(finite(data), indent=2, allow_nan=False, default=str)


def _cells(rank: int, row: Any) -> list[str]:
    durations = ("wall_ns", *(f"{name}_ns" for name in wire.PHASES), "wall_max_ns", "gc_ns")
    return [
        str(rank),
        str(row["step"]),
        str(row["n_steps"]),
        f"{int(row['t_end_ns']) / 1e9:.6f}",
        *(f"{int(row[name]) / 1e6:.6f}" for name in durations),
        *(_bytes(row[name]) for name in STEP_BYTES),
        *(_number(row[name]) for name in _PLAIN),
    ]


def _bytes(value: Any) -> str:
    """Empty where it was not measured, which the record holds as -1."""
    return "" if value < 0 else str(value)


def _number(value: Any) -> str:
    if isinstance(value, np.integer):
        return str(value)
    return f"{float(value):.9g}" if np.isfinite(value) else ""
