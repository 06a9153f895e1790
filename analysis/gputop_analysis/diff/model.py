"""Two runs compared. ``a`` is the earlier one, the baseline; ``b`` the one that is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gputop_analysis.model import Finding
from gputop_analysis.stats import Interval

SAMPLES_DIFFER = 0.01
"""Relative difference of the samples in a step from which on two runs do other work."""
Judgement = Literal[
    "regression", "slower", "faster", "no difference", "too few steps", "not comparable"
]
JUDGEMENTS: dict[Judgement, str] = {
    "regression": "B is surely slower by more than the threshold",
    "slower": "B is surely slower, but not surely by more than the threshold",
    "faster": "B is surely faster",
    "no difference": "no difference beyond the noise",
    "too few steps": "too few steps in one of the runs to compare their speed",
    "not comparable": "the runs do not do the same work: their speeds are not comparable",
}


@dataclass(frozen=True, slots=True)
class SettingChange:
    """One setting that differs."""

    name: str
    """Path of the setting, ``optimizer.lr``."""
    a: Any
    b: Any
    group: Literal["code", "environment", "config"]


@dataclass(frozen=True, slots=True)
class Caveat:
    """A difference that is said before any speed."""

    what: str
    """``loss``, ``model``, ``data``, ``device``, ``world size``, ``batch``, ``precision``,
    ``torch``, ``end``.
    """
    a: Any
    b: Any
    text: str
    """Clause for people: ``B runs torch 2.13, A 2.12``."""
    comparable: bool
    """Whether their speeds can be compared all the same, if with care."""


@dataclass(frozen=True, slots=True)
class PhaseDiff:
    """One phase, mean over the compared steps of all ranks."""

    name: str
    """A phase, or ``wait``: exposed waiting for other ranks, taken out of backward."""
    a_ms: float
    b_ms: float
    difference_ms: Interval
    """B less A per step, with its 95 % interval."""


@dataclass(frozen=True, slots=True)
class RankDiff:
    """One rank's own work per step: wall time less exposed waiting for others."""

    rank: int
    a_ms: float
    b_ms: float
    difference_ms: Interval
    phase: str
    """The phase that grew most."""


@dataclass(frozen=True, slots=True)
class SpeedDiff:
    """Relative growth of a step's (or sample's) time, B / A - 1, with its 95 % interval."""

    unit: Literal["step", "sample"]
    """``sample`` where the runs take different numbers of samples a step."""
    a_ms: float
    b_ms: float
    slower: Interval
    """B / A - 1 with its 95 % interval, the noise between runs included."""
    phases: tuple[PhaseDiff, ...]
    """Per step of the rank, most grown first. They add up to the difference of the step times."""
    ranks: tuple[RankDiff, ...]
    culprit: int | None
    """The rank whose own work alone grew; None where all did, or for one rank."""
    phase: str | None
    """The phase that surely grew, and most; None where none surely did."""
    foreign_ms: tuple[float, float]
    """Wait per step of A and of B for cores that other programs held; taken off before judging."""
    steps: tuple[int, int]
    """Steps compared, of the rank with the fewest."""


@dataclass(frozen=True, slots=True)
class MemoryDiff:
    """Peaks, the largest of any rank."""

    name: str
    a_gib: float
    b_gib: float


@dataclass(frozen=True, slots=True)
class LossDiff:
    """Comparison of the losses; None where no step's loss is known in both."""

    rank: int
    compared: int
    """Steps of which both runs have the loss."""
    first_step: int | None
    """The first of them at which the losses are not equal; None where all are."""
    first_values: tuple[float, float] | None
    first_visible_step: int | None
    """The first at which they differ by more than 0.1 %."""
    last_step: int
    last_values: tuple[float, float]
    """Losses at the last step that both have."""
    same_seed: bool | None
    """Whether both ranks said the same seed; None where one did not say."""
    equal_until: int | None = None
    """The compared step before ``first_step`` both known; the losses part between them."""


@dataclass(frozen=True, slots=True)
class FindingsDiff:
    """Findings above ``info``, by their id; the worst first."""

    came: tuple[Finding, ...]
    """In B, and not in A."""
    went: tuple[Finding, ...]
    """In A, and not in B."""
    stayed: tuple[Finding, ...]
    """In both, as B has them."""


@dataclass(frozen=True, slots=True)
class Diff:
    """Two runs side by side."""

    a_name: str
    b_name: str
    a_steps: int
    b_steps: int
    threshold: float
    """Slowdown from which on it is a regression, 0.05 for 5 %."""
    judgement: Judgement
    speed: SpeedDiff | None
    changes: tuple[SettingChange, ...]
    memory: tuple[MemoryDiff, ...]
    loss: LossDiff | None
    caveats: tuple[Caveat, ...] = ()
    """Caveats, the gravest first."""
    findings: FindingsDiff | None = None
    """None where they were not looked for."""

    @property
    def is_regression(self) -> bool:
        """Whether the slowdown surely exceeds the threshold, or the loss is NaN in B alone."""
        return self.judgement == "regression" or self.loss_broke

    @property
    def loss_broke(self) -> bool:
        """Whether the loss became NaN or infinite in B, and in A it did not."""
        return any(caveat.what == "loss" and caveat.a is None for caveat in self.caveats)

    @property
    def exit_code(self) -> int:
        """1 for a regression, else 0."""
        return int(self.is_regression)
