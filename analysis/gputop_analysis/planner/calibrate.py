"""Correcting predictions by measured runs: a factor on each group of parts, shrunk to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gputop_analysis.planner.cost import Cost
from gputop_analysis.planner.layout import Floats

GROUPS: dict[str, tuple[str, ...]] = {
    "compute": ("compute", "optimizer"),
    "launch": ("launch", "pipeline"),
    "communication": ("tensor_parallel", "context_parallel", "expert_parallel", "data_parallel"),
    "bubble": ("bubble",),
}
"""Parts that err together: a GPU that is slower than thought, a slower host, slower links."""
PRIOR_LOG_SD = {"compute": 0.08, "launch": 0.10, "communication": 0.15, "bubble": 0.08}
"""Standard deviation of the logarithm of a group's factor before anything is measured."""
NOISE_LOG_SD = 0.08
"""What a prediction with the right factors still misses: of 0.12, 0.08, 0.05 and 0.03 the one with
which a single run helped on other runs of its model, GPU and number of GPUs in every published
source, and hurt in none.
"""
OUTLIER = 2.0
"""Misses of so many standard deviations count half."""
SURE_LOG_SD = 0.03
"""No interval is narrower than this: runs differ by as much from one day to the next."""
WORTH_A_PHASE = 0.03
"""Of the step: less communication than this says nothing of the links."""
MEMORY_PRIOR_ROWS = 0.15
"""Formulas miss by a tenth or two where two runs of the same kind agree within a few percent."""
_STEPS = 30
_T_80 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
"""Student's t for an 80 % interval by degrees of freedom, 1 to 10 (scipy.stats.t.ppf(0.9, n))."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors by group, and how far the truth is from a corrected prediction."""

    factors: tuple[float, ...] = (1.0,) * len(GROUPS)
    interval: tuple[float, float] | None = None
    """Factors on a prediction that hold the truth in 80 % of cases; None where too few runs were
    measured to tell, and the error of the kind of configuration holds (``intervals``).
    """
    rows: int = 0
    leave_one_out: float = float("nan")
    """Mean absolute error of each run by calibration on the others, 0 to 1; nan below two."""
    memory_factor: float = 1.0
    """On the estimated peak of allocated bytes."""
    memory_rows: int = 0
    memory_leave_one_out: float = float("nan")
    input_s_per_sample: float = 0.0
    """Seconds that a data-parallel rank waited for each of its samples."""

    def seconds(self, parts: Cost) -> Floats:
        """Of a step, corrected."""
        return _grouped(parts) @ np.asarray(self.factors) + parts.input

    def with_input(self, parts: Cost, samples: Floats) -> Cost:
        """With the wait for data; ``samples`` are those of a data-parallel rank in a step."""
        return replace(parts, input=samples * self.input_s_per_sample)

    def to_json(self) -> dict[str, Any] | None:
        """None before anything is measured; errors are shares, None below two runs."""
        if not self.rows:
            return None
        return {
            "runs": self.rows,
            "factors": dict(zip(GROUPS, self.factors, strict=True)),
            "leave_one_out_error": _told(self.leave_one_out),
            "interval": list(self.interval) if self.interval else None,
            "memory_runs": self.memory_rows,
            "memory_factor": self.memory_factor,
            "memory_leave_one_out_error": _told(self.memory_leave_one_out),
            "input_ms_per_sample": 1000 * self.input_s_per_sample,
        }

    def factor(self, group: str) -> float:
        return self.factors[list(GROUPS).index(group)]


def calibrate(parts: Sequence[Cost], measured_s: Sequence[float]) -> Calibration:
    """From predictions of one configuration each and the measured seconds of their steps.

    The most likely factors under log-normal errors and priors (a small Gauss-Newton fit, in which
    runs far off count less: Cauchy weights); those that the runs say nothing about stay at 1. All
    stay at 1 if the fit predicts runs that it was not given no better than no fit does.

    Raises:
        ValueError: no runs, or not as many measurements as predictions.
    """
    if not parts or len(parts) != len(measured_s):
        raise ValueError(
            "a calibration needs at least one measured run, and one prediction for each"
        )
    table = np.concatenate([_grouped(part)[:1] for part in parts])
    truth = np.asarray(measured_s, float)
    factors = _fit(table, truth)
    if len(truth) > 1:
        errors = [_left_out(table, truth, i) for i in range(len(truth))]
    else:
        errors = []
    before = np.log(truth / table.sum(axis=1)).tolist()
    if errors and np.mean(np.abs(errors)) >= np.mean(np.abs(before)):
        factors, errors = np.ones(len(GROUPS)), before
    return Calibration(
        factors=tuple(factors.tolist()),
        interval=_interval(errors),
        rows=len(truth),
        leave_one_out=_mean_error(errors),
    )


def by_phases(parts: Cost, step_s: float, communication_s: float) -> Calibration:
    """From one run (parts of one configuration) whose communication was measured apart from the
    rest of its step.

    Waiting for messages and for other stages is communication to whoever measures, so both groups
    answer for it. Where either side has less than ``WORTH_A_PHASE`` of it, the whole step is one
    measurement.
    """
    row = _grouped(parts)[:1]
    exposed = np.array([[name in ("communication", "bubble") for name in GROUPS]])
    told_s = float((row * exposed).sum())
    if min(communication_s / step_s, told_s / float(row.sum())) < WORTH_A_PHASE:
        return calibrate([parts], [step_s])
    table = np.concatenate([row * ~exposed, row * exposed])
    factors = _fit(table, np.array([step_s - communication_s, communication_s]))
    return Calibration(factors=tuple(factors.tolist()), rows=1)


def with_memory(
    calibration: Calibration, estimated: Sequence[float], measured: Sequence[float]
) -> Calibration:
    """With a factor on memory from runs whose peak of allocated bytes was estimated and measured;
    as it was without.

    The mean of the logarithms, shrunk towards 0 as if it were ``MEMORY_PRIOR_ROWS`` runs that agree
    with the estimate.
    """
    if len(measured):
        ratios = np.log(np.asarray(measured, float) / np.asarray(estimated, float))
    else:
        ratios = np.zeros(0)
    count = len(ratios)
    if not count:
        return calibration
    leave_one_out = []
    if count > 1:
        without_it = (ratios.sum() - ratios) / (count - 1 + MEMORY_PRIOR_ROWS)
        leave_one_out = (ratios - without_it).tolist()
    return replace(
        calibration,
        memory_factor=float(np.exp(ratios.sum() / (count + MEMORY_PRIOR_ROWS))),
        memory_rows=count,
        memory_leave_one_out=_mean_error(leave_one_out),
    )


def _told(error: float) -> float | None:
    return None if error != error else error


def _mean_error(errors: Sequence[float]) -> float:
    """Of logarithms of truth over prediction, as a share."""
    if len(errors):
        return float(np.mean(np.abs(np.exp(errors) - 1)))
    return float("nan")


def _fit(table: Floats, truth: Floats) -> Floats:
    """``table`` is runs by groups in seconds; returns a factor for each group."""
    spread = np.array([PRIOR_LOG_SD[group] for group in GROUPS])
    logs = np.zeros(len(GROUPS))
    for _ in range(_STEPS):
        weighted = table * np.exp(logs)
        predicted = weighted.sum(axis=1)
        slope = weighted / predicted[:, None] / NOISE_LOG_SD
        miss = (np.log(truth) - np.log(predicted)) / NOISE_LOG_SD
        left_columns = np.concatenate([slope, np.diag(1 / spread)])
        trust = 1 / np.sqrt(1 + np.square(miss / OUTLIER))
        left_columns[: len(truth)] *= trust[:, None]
        right = np.concatenate([miss * trust, -logs / spread])
        logs = logs + np.clip(np.linalg.lstsq(left_columns, right, rcond=None)[0], -0.5, 0.5)
    return np.exp(logs)


def _left_out(table: Floats, truth: Floats, index: int) -> float:
    """log(truth / prediction) of one run by a fit on the others."""
    other_rows = np.arange(len(truth)) != index
    return float(np.log(truth[index] / (table[index] @ _fit(table[other_rows], truth[other_rows]))))


def _interval(errors: list[float]) -> tuple[float, float] | None:
    """80 % interval of a next run: Student's in the logarithm, at least ``SURE_LOG_SD``."""
    if not errors:
        return None
    sd = max(float(np.sqrt(np.mean(np.square(errors)))), SURE_LOG_SD) * np.sqrt(1 + 1 / len(errors))
    wide = _T_80[min(len(errors) - 1, len(_T_80)) - 1] * sd
    return float(np.exp(-wide)), float(np.exp(wide))


def _grouped(parts: Cost) -> Floats:
    """Configurations by groups, seconds."""
    return np.stack(
        [sum((getattr(parts, name) for name in names), 0.0) for names in GROUPS.values()], axis=1
    )
