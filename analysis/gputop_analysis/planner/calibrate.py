"""Correcting predictions by measured runs: a factor on each of a few groups of parts, shrunk towards 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
"""How far a group's factor is from 1 before anything is measured, as a standard deviation of its logarithm."""
NOISE_LOG_SD = 0.12
"""What a prediction with the right factors still misses."""
OUTLIER = 2.0
"""Misses of so many standard deviations count half."""
SURE_LOG_SD = 0.03
"""No interval is narrower than this: runs differ by as much from one day to the next."""
UNCALIBRATED = (0.88, 1.18)
"""Truth over prediction, 10th and 90th percentile over published runs, the Playbook's sweep left out, in which one run
of ten takes over seven times as long as predicted (docs/planner_accuracy.md says why)."""
_STEPS = 30


@dataclass(frozen=True, slots=True)
class Calibration:
    """Factors by group, and how far the truth is from a corrected prediction."""

    factors: tuple[float, ...] = (1.0,) * len(GROUPS)
    interval: tuple[float, float] = UNCALIBRATED
    """Factors on a prediction that hold the truth in 80 % of cases."""
    rows: int = 0
    leave_one_out: float = float("nan")
    """Mean absolute error of each measured run by a calibration on the others, as a share; nan below two runs."""

    def seconds(self, parts: Cost) -> Floats:
        """Of a step, corrected."""
        return _grouped(parts) @ np.asarray(self.factors)

    def factor(self, group: str) -> float:
        return self.factors[list(GROUPS).index(group)]


def calibrate(parts: Sequence[Cost], measured_s: Sequence[float]) -> Calibration:
    """From predictions of one configuration each and the measured seconds of their steps.

    The most likely factors under log-normal errors and priors (a small Gauss-Newton fit, in which runs far off count
    less: Cauchy weights); those that the runs say nothing about stay at 1. All stay at 1 if the fit predicts runs that
    it was not given no better than no fit does.

    Raises:
        ValueError: no runs, or not as many measurements as predictions.
    """
    if not parts or len(parts) != len(measured_s):
        raise ValueError("a calibration needs at least one measured run, and one prediction for each")
    table = np.concatenate([_grouped(one)[:1] for one in parts])
    truth = np.asarray(measured_s, float)
    factors = _fit(table, truth)
    errors = [_left_out(table, truth, i) for i in range(len(truth))] if len(truth) > 1 else []
    before = np.log(truth / table.sum(axis=1)).tolist()
    if errors and np.mean(np.abs(errors)) >= np.mean(np.abs(before)):
        factors, errors = np.ones(len(GROUPS)), before
    return Calibration(
        factors=tuple(factors.tolist()),
        interval=_interval(errors),
        rows=len(truth),
        leave_one_out=float(np.mean(np.abs(np.exp(errors) - 1))) if errors else float("nan"),
    )


def _fit(table: Floats, truth: Floats) -> Floats:
    """``table`` is runs by groups in seconds; returns a factor for each group."""
    spread = np.array([PRIOR_LOG_SD[group] for group in GROUPS])
    logs = np.zeros(len(GROUPS))
    for _ in range(_STEPS):
        weighted = table * np.exp(logs)
        predicted = weighted.sum(axis=1)
        slope = weighted / predicted[:, None] / NOISE_LOG_SD
        miss = (np.log(truth) - np.log(predicted)) / NOISE_LOG_SD
        left = np.concatenate([slope, np.diag(1 / spread)])
        trust = 1 / np.sqrt(1 + np.square(miss / OUTLIER))
        left[: len(truth)] *= trust[:, None]
        right = np.concatenate([miss * trust, -logs / spread])
        logs = logs + np.clip(np.linalg.lstsq(left, right, rcond=None)[0], -0.5, 0.5)
    return np.exp(logs)


def _left_out(table: Floats, truth: Floats, index: int) -> float:
    """log(truth / prediction) of one run by a fit on the others."""
    others = np.arange(len(truth)) != index
    return float(np.log(truth[index] / (table[index] @ _fit(table[others], truth[others]))))


def _interval(errors: list[float]) -> tuple[float, float]:
    """80 % interval of a next run: normal in the logarithm, no narrower than ``SURE_LOG_SD``, wider for few runs."""
    if not errors:
        return UNCALIBRATED
    sd = max(float(np.sqrt(np.mean(np.square(errors)))), SURE_LOG_SD) * np.sqrt(1 + 1 / len(errors))
    return float(np.exp(-1.2816 * sd)), float(np.exp(1.2816 * sd))


def _grouped(parts: Cost) -> Floats:
    """Configurations by groups, seconds."""
    return np.stack([sum((getattr(parts, name) for name in names), 0.0) for names in GROUPS.values()], axis=1)
