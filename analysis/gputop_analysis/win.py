"""What a finding's fix is worth: the step as it is and as it would be."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gputop_analysis.model import Finding
    from gputop_analysis.overview import RunSummary


class Win(NamedTuple):
    """Milliseconds a step, mean over the ranks."""

    before_ms: float
    after_ms: float
    since_step: int = 0
    """First step that is as slow as ``before_ms``."""

    @property
    def factor(self) -> float:
        """How many times as fast."""
        return self.before_ms / self.after_ms


def mean_step_ms(summary: RunSummary) -> float:
    """Mean step time of all ranks over the window, in milliseconds; NaN before the first step."""
    means = [rank.step_time_mean_ms for rank in summary.ranks]
    return sum(means) / len(means) if means else float("nan")


def win_of(summary: RunSummary, finding: Finding) -> Win | None:
    """The win of one finding; None where its fix wins no time, or more than a step has."""
    won_ms = finding.recoverable_ms_per_step
    since_step, before_ms = finding.since or (0, mean_step_ms(summary))
    if not won_ms or not 0 < won_ms < before_ms:
        return None
    return Win(before_ms, before_ms - won_ms, since_step)
