"""Is B slower, by how much, in which phase, on which rank: differences of means, intervals from
resampled blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gputop_analysis.diff.blocks import COLUMNS, StepBlocks, blocks_of
from gputop_analysis.diff.load import foreign_wait_ms
from gputop_analysis.diff.model import SAMPLES_DIFFER, Judgement, PhaseDiff, RankDiff, SpeedDiff
from gputop_analysis.stats import Interval
from gputop_analysis.step_parts import WAIT
from gputop_analysis.view import Array, RunView

BETWEEN_RUNS = 0.01
"""Standard deviation of the step time between two runs that nothing inside a run shows, such as
where memory and threads were placed. It is added to what the runs show themselves: see
``StepBlocks.drift``.
"""
BETWEEN_SHORT_RUNS = 0.05
"""The same of runs shorter than ``SHORT_S``. Whatever else the machine does lasts for seconds: such
a run sees one state of it, and is over before the load can be sampled.
"""
SHORT_S = 2.0
_OWN = [i for i, name in enumerate(COLUMNS) if name != WAIT]
_ALL = list(range(len(COLUMNS)))


class Pair:
    """Both runs with their draws, and differences of any sum of columns with an interval."""

    def __init__(self, a: StepBlocks, b: StepBlocks):
        self.a, self.b = a, b
        (self.draws_a, self.means_a), (self.draws_b, self.means_b) = a.resampled(), b.resampled()

    def means(self, columns: list[int], rank: int | None = None) -> tuple[float, float]:
        """Milliseconds per step of a rank, or of the mean rank, in both runs."""
        a, b = (
            float(m[_at(blocks, rank)][:, columns].sum(1).mean())
            for blocks, m in self._each("means")
        )
        return a, b

    def grown_ms(self, column: int, rank: int) -> float:
        """B less A of one column of a rank."""
        before, after = self.means([column], rank)
        return after - before

    def difference(self, columns: list[int], rank: int | None = None) -> Interval:
        """B less A."""
        (mean_a, mean_b), (draws_a, draws_b) = self.means(columns, rank), self._draws(columns, rank)
        value = mean_b - mean_a
        low, high = np.quantile(draws_b - draws_a, (0.025, 0.975))
        noise = 1.96 * float(np.hypot(*self.drifts(columns, rank)))
        return Interval(
            value,
            value - float(np.hypot(max(value - low, 0), noise)),
            value + float(np.hypot(max(high - value, 0), noise)),
        )

    def ratio(self, foreign_ms: tuple[float, float], per_sample: float | None) -> Interval:
        """B / A - 1 of the whole step. Variances of all kinds of noise add on the logarithm.

        What other programs took is off both sides, so that A against B says the same as B against
        A.
        """
        if per_sample is None:
            scale = 1.0
        else:
            scale = per_sample
        of_a, of_b = foreign_ms
        (mean_a, mean_b), (draws_a, draws_b) = self.means(_ALL), self._draws(_ALL, None)
        value = _log(mean_b - of_b, mean_a - of_a) + np.log(scale)
        drawn = _log(draws_b - of_b, draws_a - of_a) + np.log(scale)
        low, high = np.quantile(drawn, (0.025, 0.975))
        drift_a, drift_b = self.drifts(_ALL, None)
        drifts = drift_a / max(mean_a, 1e-9), drift_b / max(mean_b, 1e-9)
        noise = 1.96 * float(np.hypot(np.hypot(*drifts), np.sqrt(2) * self.between_runs()))
        below, above = np.hypot(max(value - low, 0), noise), np.hypot(max(high - value, 0), noise)
        return Interval(*(float(np.expm1(x)) for x in (value, value - below, value + above)))

    def between_runs(self) -> float:
        """Standard deviation between runs as long as the shorter one, as a share of the step."""
        shortest_s = min(float(blocks.ms[0].sum()) for blocks in (self.a, self.b)) / 1e3
        return BETWEEN_RUNS if shortest_s >= SHORT_S else BETWEEN_SHORT_RUNS

    def drifts(self, columns: list[int], rank: int | None) -> tuple[float, float]:
        """``StepBlocks.drift`` of both runs."""
        deviations = []
        for blocks in (self.a, self.b):
            at = _at(blocks, rank)
            values = blocks.ms[at][:, :, columns].sum(axis=(0, 2)) / np.maximum(
                blocks.steps[at].sum(axis=0), 1e-9
            )
            deviations.append(blocks.drift(values))
        return deviations[0], deviations[1]

    def _draws(self, columns: list[int], rank: int | None) -> tuple[Array, Array]:
        a, b = (
            m[:, _at(blocks, rank)][:, :, columns].sum(2).mean(1)
            for blocks, m in self._each("draws")
        )
        return a, b

    def _each(self, quantity: str):
        return ((self.a, getattr(self, f"{quantity}_a")), (self.b, getattr(self, f"{quantity}_b")))


def compare_speed(a: RunView, b: RunView) -> SpeedDiff | None:
    """None where one of the runs has too few steps past its warm-up."""
    first, second = blocks_of(a), blocks_of(b)
    if first is None or second is None:
        return None
    pair, per_sample = Pair(first, second), _by_sample(first, second)
    foreign = foreign_wait_ms(a), foreign_wait_ms(b)
    wall_a, wall_b = pair.means(_ALL)
    phases, ranks = _phases(pair), _ranks(pair)
    return SpeedDiff(
        unit="step" if per_sample is None else "sample",
        a_ms=wall_a if per_sample is None else wall_a / first.samples,
        b_ms=wall_b if per_sample is None else wall_b / second.samples,
        slower=pair.ratio(foreign, per_sample),
        phases=tuple(sorted(phases, key=lambda phase: -phase.difference_ms.value)),
        ranks=ranks,
        culprit=_culprit(ranks, wall_a),
        phase=_grown(phases, wall_a),
        foreign_ms=foreign,
        steps=(first.fewest_steps, second.fewest_steps),
    )


def judge_speed(speed: SpeedDiff | None, threshold: float) -> Judgement:
    """A regression is one whose interval lies above the threshold as a whole."""
    if speed is None:
        return "too few steps"
    if speed.slower.low > threshold:
        return "regression"
    if speed.slower.low > 0:
        return "slower"
    if speed.slower.high < 0:
        return "faster"
    return "no difference"


def _log(b: Any, a: Any) -> Any:
    return np.log(np.maximum(b, 1e-9) / np.maximum(a, 1e-9))


def _at(blocks: StepBlocks, rank: int | None) -> list[int]:
    if rank is None:
        return list(range(len(blocks.ranks)))
    return [blocks.ranks.index(rank)]


def _by_sample(a: StepBlocks, b: StepBlocks) -> float | None:
    """Samples a step of A over those of B; None where they agree, or were not counted."""
    if not a.samples or not b.samples:
        return None
    ratio = a.samples / b.samples
    if abs(ratio - 1) > SAMPLES_DIFFER:
        return ratio
    return None


def _phases(pair: Pair) -> list[PhaseDiff]:
    """Means over the ranks."""
    differences = []
    for i, name in enumerate(COLUMNS):
        differences.append(PhaseDiff(name, *pair.means([i]), pair.difference([i])))
    return [difference for difference in differences if difference.a_ms or difference.b_ms]


def _ranks(pair: Pair) -> tuple[RankDiff, ...]:
    """Own work of the ranks that both runs have."""
    differences = []
    for rank in sorted(set(pair.a.ranks) & set(pair.b.ranks)):
        phase = COLUMNS[max(_OWN, key=lambda i, rank=rank: pair.grown_ms(i, rank))]
        differences.append(
            RankDiff(rank, *pair.means(_OWN, rank), pair.difference(_OWN, rank), phase)
        )
    return tuple(differences)


def _culprit(ranks: tuple[RankDiff, ...], wall_ms: float) -> int | None:
    """The rank that surely grew, by far more than the median of the others."""
    if len(ranks) < 2:
        return None
    worst = max(ranks, key=lambda difference: difference.difference_ms.value)
    others_ms = float(
        np.median(
            [difference.difference_ms.value for difference in ranks if difference is not worst]
        )
    )
    enough = max(0.02 * wall_ms, 0.5 * worst.difference_ms.value)
    sure = worst.difference_ms.low > 0 and worst.difference_ms.low > others_ms
    if sure and worst.difference_ms.value - others_ms > enough:
        return worst.rank
    return None


def _grown(phases: list[PhaseDiff], wall_ms: float) -> str | None:
    grown = [phase for phase in phases if phase.difference_ms.low > max(0.0, 0.01 * wall_ms)]
    if grown:
        return max(grown, key=lambda phase: phase.difference_ms.value).name
    return None
