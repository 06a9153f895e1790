"""One rank's step records inside a window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_agent import wire
from gputop_probes.record.tables import THIN_BLOCK_RECORDS, THIN_BLOCKS, blocks, release_pages

Array = npt.NDArray[Any]

WARM_UP_STEPS = 10
"""First steps of a process that no steady-state statistic uses."""

ENOUGH_STEPS = 20
"""Steps that a mean of the run wants."""

_MAY_BE_USUAL = (wire.F_EVAL, wire.F_CHECKPOINT)
MOST_RECORDS = 0.5
"""Of the records past the warm-up: what as many have belongs to a usual step."""
_NOT_THE_TRAININGS = wire.F_FIRST | wire.F_AGENT


@dataclass
class RankSeries:
    """Step records of one rank; each stands for ``n_steps`` steps."""

    rank: int
    rows: Array
    """``wire.STEP_FIELDS``, in the order written."""
    clock: str = "host"
    """Whose clock the phases are on: ``device`` where CUDA events measured enough steps."""
    ahead: int = 0
    """Steps that the rank made alone before the ranks trained together."""

    @cached_property
    def n_steps(self) -> Array:
        """Steps per record."""
        return np.maximum(self.rows["n_steps"].astype(np.int64), 1)

    @cached_property
    def steps(self) -> Array:
        """Index of each record's last step."""
        return self.rows["step"].astype(np.int64)

    @cached_property
    def attempt_start(self) -> int:
        """Index of the first record of the last attempt: a restarted process counts from 0."""
        back = np.flatnonzero(np.diff(self.steps) <= 0)
        return int(back[-1]) + 1 if len(back) else 0

    @cached_property
    def steady(self) -> Array:
        """Mask of records for steady-state statistics: last attempt, past the warm-up, no eval,
        checkpoint, compile; an eval or checkpoint that is a part of the usual step is no reason.
        """
        flags = self.rows["flags"]
        mask = self.steps - self.n_steps + 1 >= WARM_UP_STEPS
        mask[: self.attempt_start] = False
        steady = mask & ((flags & wire.F_UNSTEADY) == 0)
        if self.n_steps[steady].sum() >= ENOUGH_STEPS or not mask.any():
            return steady
        usual = sum(
            flag for flag in _MAY_BE_USUAL if np.mean((flags[mask] & flag) != 0) > MOST_RECORDS
        )
        return mask & ((flags & wire.F_UNSTEADY & ~np.uint32(usual)) == 0)

    @cached_property
    def steady_ends_ns(self) -> Array:
        """When the steady records ended."""
        return self.rows["t_end_ns"][self.steady]

    @cached_property
    def steady_rows(self) -> Array:
        """The records that ``steady`` masks."""
        return picked(self.rows, self.steady)

    @cached_property
    def after_set_up(self) -> Array:
        """Mask of all records but those that contain a process's first step."""
        return ((self.rows["flags"] & wire.F_FIRST) == 0) & (self.steps - self.n_steps >= 0)

    @cached_property
    def compiling(self) -> Array:
        """Mask of records in which something was compiled."""
        return (self.rows["flags"] & wire.F_COMPILE) != 0

    @cached_property
    def measured(self) -> Array:
        """Mask of records whose phases were measured; those of the others are estimates, their wall
        time is exact.
        """
        return (self.rows["flags"] & wire.F_ESTIMATED) == 0

    @cached_property
    def representative(self) -> Array:
        """Mask of records to judge phases by: windows where steps were sampled, else all."""
        in_window = (self.rows["flags"] & wire.F_WINDOW) != 0
        if in_window.sum() >= ENOUGH_STEPS:
            return in_window
        return np.ones(len(self.rows), bool)

    @cached_property
    def past_warm_up(self) -> Array:
        """Mask of the last attempt past the warm-up, without set-up and gputop's own work."""
        mask = ((self.rows["flags"] & _NOT_THE_TRAININGS) == 0) & (
            self.steps - self.n_steps + 1 >= WARM_UP_STEPS
        )
        mask[: self.attempt_start] = False
        return mask

    @cached_property
    def averaged(self) -> Array:
        """Mask of the records that means and quantiles of a run are over, evaluation and
        checkpoints included.

        Those past the warm-up; of a run with fewer than ``ENOUGH_STEPS`` of them all but the first
        step, or all.
        """
        if self.steps_left_out == WARM_UP_STEPS:
            return self.past_warm_up
        if self.steps_left_out == 1:
            return self.after_set_up
        return np.ones(len(self.rows), bool)

    @cached_property
    def steps_left_out(self) -> int:
        """First steps of the process that ``averaged`` leaves out: those of the warm-up, 1 or 0."""
        for left_out, mask in ((WARM_UP_STEPS, self.past_warm_up), (1, self.after_set_up)):
            if self.n_steps[mask].sum() >= ENOUGH_STEPS:
                return left_out
        return 0

    @cached_property
    def averaged_rows(self) -> Array:
        """The records that ``averaged`` masks."""
        return picked(self.rows, self.averaged)

    @cached_property
    def averaged_steps(self) -> int:
        """Steps that ``averaged`` masks."""
        return int(self.n_steps[self.averaged].sum())

    def mean_ms(self, column: str) -> float:
        """Mean of a duration column per step over ``averaged``, milliseconds."""
        total = float(self.averaged_rows[column].sum(dtype=np.float64))
        return total / 1e6 / max(self.averaged_steps, 1)

    @cached_property
    def wall_ms(self) -> Array:
        """Wall time per step."""
        return self.per_step_ms("wall_ns")

    def phase_ms(self, name: str) -> Array:
        """Time of one phase per step."""
        return self.per_step_ms(f"{name}_ns")

    def per_step_ms(self, column: str) -> Array:
        """A duration column divided by the steps of each record, in milliseconds."""
        return self.rows[column] / (1e6 * self.n_steps)

    def total_steps(self) -> int:
        """Steps in the window."""
        return int(self.n_steps.sum())


def picked(rows: Array, mask: Array) -> Array:
    """``rows[mask]`` of whole records, where that copies each field alone (600 us for 1000)."""
    return rows.take(np.flatnonzero(mask))


def row_at(rows: Array, step: int) -> Any:
    """The first record that ends at a step or after it; None: there is none."""
    at = np.flatnonzero(rows["step"] >= step)
    return rows[at[0]] if len(at) else None


def last_attempt(rows: Array) -> Array:
    """The records since the step index last began again: a restarted process counts anew."""
    back = np.flatnonzero(np.diff(rows["step"].astype(np.int64)) <= 0)
    return rows[back[-1] + 1 :] if len(back) else rows


def tail_steps(rows: Array, steps: int) -> Array:
    """The last records that together hold at least ``steps`` steps."""
    tail = rows[-max(1, steps) :]
    steps_from_end = np.cumsum(tail["n_steps"][::-1].astype(np.int64))
    return np.asarray(
        tail[len(tail) - 1 - int(np.searchsorted(steps_from_end, steps).clip(0, len(tail) - 1)) :]
    )


def tail_seconds(
    rows: Array, seconds: float, key: str = "t_end_ns", at_most: int = 100_000
) -> Array:
    """The records of the last ``seconds`` before the newest."""
    tail = rows[-at_most:]
    if len(tail) == 0:
        return np.asarray(tail)
    times = tail[key]
    return np.asarray(tail[int(np.searchsorted(times, times[-1] - int(seconds * 1e9))) :])


def thinned(rows: Array) -> Array:
    """All records, or spread blocks of a file too long to read, with first and last block."""
    if len(rows) <= 2 * THIN_BLOCKS * THIN_BLOCK_RECORDS:
        return np.asarray(rows)
    rows_kept = np.empty(THIN_BLOCKS * THIN_BLOCK_RECORDS, rows.dtype)
    for index, block in enumerate(blocks(len(rows))):
        rows_kept[index * THIN_BLOCK_RECORDS :][:THIN_BLOCK_RECORDS] = rows[block]
    release_pages(rows)
    return rows_kept


def mean_ms_by_bin(columns: Iterable[tuple[Array, Array]], edges: Array) -> Array:
    """The mean of what was measured in each bin, in ms; the mean of all in a bin without any, NaN
    throughout where nothing was measured.

    Args:
        columns: of each rank where its records lie, as ``edges`` has it, and their nanoseconds.
        edges: of the bins; one more than there are bins.
    """
    count = len(edges) - 1
    sums_ms, records = np.zeros(count), np.zeros(count)
    for positions, durations_ns in columns:
        at = np.searchsorted(edges, positions, side="right") - 1
        inside = (at >= 0) & (at < count)
        sums_ms += np.bincount(at[inside], durations_ns[inside] / 1e6, count)
        records += np.bincount(at[inside], minlength=count)
    if not records.any():
        return np.full(count, np.nan)
    mean_ms = sums_ms.sum() / records.sum()
    return np.where(records > 0, sums_ms / np.maximum(records, 1), mean_ms)
