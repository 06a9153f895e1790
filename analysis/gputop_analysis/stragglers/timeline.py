"""Timelines of operations: a table with a row an operation, as ``.csv`` or ``.csv.gz``.

Columns: ``dp_rank, stage, rank, step, optype, start_ts, duration`` (seconds), ``seq_id`` (counts
the operations of one kind, worker and step), ``mc`` and ``gmc`` (model chunk in the stage and in
the model), ``mb_id``.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputop_analysis.snapshots.load import SnapshotError, unpacked

COLUMNS = (
    "dp_rank",
    "stage",
    "rank",
    "step",
    "optype",
    "start_ts",
    "duration",
    "seq_id",
    "mc",
    "gmc",
)
_ROWS_AT_MOST = 5_000_000
_CELLS_AT_MOST = 50_000_000

Seconds = npt.NDArray[np.float64]


class TimelineError(ValueError):
    """The file is no such table; the message is one line for the user."""


class Op(NamedTuple):
    """One operation of every step and data-parallel rank."""

    kind: str
    number: int
    """Counts those of its kind in a stage and step."""
    stage: int


@dataclass(frozen=True, slots=True)
class OperationTimeline:
    """A job's operations; arrays are ``[dp rank, step]``, seconds since the step's first one."""

    path: str
    starts: dict[Op, Seconds]
    ends: dict[Op, Seconds]
    chunks: dict[Op, tuple[int, int]]
    """(model chunk in the stage, in the model)."""
    steps: tuple[int, ...]
    dp: int
    stages: int
    ranks: dict[tuple[int, int], int]
    """Rank by (dp rank, stage)."""

    def of(self, kind: str, stage: int) -> list[Op]:
        """Operations of a kind in a stage, in the order of the first worker's first step."""
        operations = [op for op in self.starts if op.kind == kind and op.stage == stage]
        return sorted(operations, key=lambda op: (self.starts[op][0, 0], op.number))


def load(path: str | os.PathLike[str]) -> OperationTimeline:
    """Read a timeline.

    Steps and operations that not every worker has are left out.

    Raises:
        TimelineError: it cannot be read, or is no such table.
    """
    try:
        text = unpacked(path).decode("utf-8")
        rows = _rows(text)
    except OSError as error:
        raise TimelineError(f"cannot read {path}: {error.strerror or error}") from None
    except (SnapshotError, zlib.error) as error:
        raise TimelineError(str(error)) from None
    except (ValueError, KeyError, TypeError, csv.Error, OverflowError):
        raise TimelineError(
            f"{path} is no timeline of operations: its columns are {', '.join(COLUMNS)}"
        ) from None
    if not rows:
        raise TimelineError(f"{path} has no operation")
    return _timeline(str(path), rows)


class _Row(NamedTuple):
    dp: int
    stage: int
    rank: int
    step: int
    op: Op
    start: float
    duration: float
    chunk: tuple[int, int]


def _rows(text: str) -> list[_Row]:
    rows = []
    for raw in csv.DictReader(io.StringIO(text)):
        start, duration = float(raw["start_ts"]), float(raw["duration"])
        dp, stage, step = int(raw["dp_rank"]), int(raw["stage"]), int(raw["step"])
        index = int(raw["seq_id"])
        if not (math.isfinite(start) and math.isfinite(duration) and duration >= 0):
            raise ValueError
        if min(dp, stage, step, index) < 0 or max(dp, stage) > 65_536:
            raise ValueError
        chunk = _chunk(raw["mc"]), _chunk(raw["gmc"])
        op = Op(raw["optype"][:80], index, stage)
        rows.append(_Row(dp, stage, int(raw["rank"]), step, op, start, duration, chunk))
        if len(rows) > _ROWS_AT_MOST:
            raise ValueError
    return rows


def _chunk(text: str) -> int:
    return int(float(text)) if text else 0


def _timeline(path: str, rows: list[_Row]) -> OperationTimeline:
    dp = max(row.dp for row in rows) + 1
    stages = max(row.stage for row in rows) + 1
    steps = sorted({row.step for row in rows})
    positions = {step: index for index, step in enumerate(steps)}
    ops = {row.op for row in rows}
    if len(ops) * dp * len(steps) > _CELLS_AT_MOST:
        raise TimelineError(f"{path} names more workers, steps and operations than are read")
    starts = {op: np.full((dp, len(steps)), np.nan) for op in sorted(ops)}
    ends = {op: np.full((dp, len(steps)), np.nan) for op in sorted(ops)}
    for row in rows:
        starts[row.op][row.dp, positions[row.step]] = row.start
        ends[row.op][row.dp, positions[row.step]] = row.start + row.duration
    complete = _complete_steps(starts)
    if not complete.any():
        raise TimelineError(f"{path} has no step in which every worker has every operation")
    first = np.min([start[:, complete].min(axis=0) for start in starts.values()], axis=0)
    return OperationTimeline(
        path=path,
        starts={op: start[:, complete] - first for op, start in starts.items()},
        ends={op: end[:, complete] - first for op, end in ends.items()},
        chunks={row.op: row.chunk for row in rows},
        steps=tuple(itertools.compress(steps, complete)),
        dp=dp,
        stages=stages,
        ranks={(row.dp, row.stage): row.rank for row in rows},
    )


def _complete_steps(starts: dict[Op, np.ndarray]) -> np.ndarray:
    """Whether each step has every operation of every worker; ``starts[op]``: [workers, steps]."""
    return np.all([~np.isnan(start).any(axis=0) for start in starts.values()], axis=0)
