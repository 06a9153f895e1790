"""Ranks compared by their own work: step time less waiting, which alone can differ."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gputop import palette
from gputop.render import numbers

if TYPE_CHECKING:
    from gputop_analysis.model import RankSummary

STANDS_OUT = 1.02
"""Times the median rank's own work, from which on the phase that is longer is named."""


class Standing(NamedTuple):
    """One rank; milliseconds a step."""

    rank: RankSummary
    own_ms: float
    wait_ms: float
    """0 where nothing measures it."""
    ratio: float
    """Own work against the median rank's."""
    phase: str
    """Where it takes longer than the median rank; empty where it does not."""
    more_ms: float

    @property
    def slow_in(self) -> str:
        """``data +5.00``."""
        digits = numbers.digits_for(self.own_ms)
        if self.phase:
            return f"{self.phase} +{numbers.ms_column(self.more_ms, digits)}"
        return ""


def standings(ranks: Sequence[RankSummary]) -> list[Standing]:
    """Each rank beside the median one, in the order given."""
    if not ranks:
        return []
    waits = [rank.wait_mean_ms if numbers.known(rank.wait_mean_ms) else 0.0 for rank in ranks]
    own_ms = [rank.step_time_mean_ms - wait for rank, wait in zip(ranks, waits, strict=True)]
    middle = median(own_ms) or 1.0
    parts = [own_phases(rank, wait) for rank, wait in zip(ranks, waits, strict=True)]
    typical = {name: median([part[name] for part in parts]) for name in parts[0]}
    result = []
    for rank, its_own, wait, part in zip(ranks, own_ms, waits, parts, strict=True):
        phase = max(typical, key=lambda name: part[name] - typical[name])
        more, ratio = part[phase] - typical[phase], its_own / middle
        if ratio < STANDS_OUT or len(ranks) < 2:
            phase, more = "", 0.0
        result.append(Standing(rank, its_own, wait, ratio, phase, more))
    return result


def own_phases(rank: RankSummary, wait_ms: float) -> dict[str, float]:
    """Its phases without waiting: that in collectives, and the rest, in backward."""
    phases = {phase.name: rank.phases_mean_ms.get(phase.name, 0.0) for phase in palette.PHASES}
    hidden = max(wait_ms - phases.pop("comm"), 0.0)
    phases["backward"] -= min(hidden, phases["backward"])
    return phases
