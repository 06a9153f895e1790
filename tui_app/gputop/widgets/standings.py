"""Ranks compared by their own work: step time less waiting, which alone can differ."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gputop import palette
from gputop.render import numbers

if TYPE_CHECKING:
    from gputop_analysis.model import RankSummary

TELLS = 0.25
"""Share of what a rank is slower by that a phase has to hold to be named for it."""
STANDS_OUT = 1.02
"""Times the median rank's own work, from which on the phase that is longer is named."""


class RankTimes(NamedTuple):
    """One rank; milliseconds a step."""

    rank: RankSummary
    own_ms: float
    wait_ms: float
    """0 where nothing measures it."""
    ratio: float
    """Own work against the median rank's; of two ranks against the other's."""
    phase: str
    """Where it takes longer than that rank; empty where it does not."""
    more_ms: float

    @property
    def slow_in(self) -> str:
        """``data +5.00``."""
        digits = numbers.digits_for(self.own_ms)
        if self.phase:
            return f"{self.phase} +{numbers.ms_column(self.more_ms, digits)}"
        return ""


def standings(ranks: Sequence[RankSummary]) -> list[RankTimes]:
    """Each rank beside the median one, of two beside the other: the median of two would halve the
    difference. In the order given.
    """
    if not ranks:
        return []
    waits = [rank.wait_mean_ms if numbers.known(rank.wait_mean_ms) else 0.0 for rank in ranks]
    own_ms = [rank.step_time_mean_ms - wait for rank, wait in zip(ranks, waits, strict=True)]
    parts = [own_phases(rank, wait) for rank, wait in zip(ranks, waits, strict=True)]
    usual_ms = _usual(own_ms)
    usual_parts = {name: _usual([part[name] for part in parts]) for name in parts[0]}
    result = []
    for index, (rank, part) in enumerate(zip(ranks, parts, strict=True)):
        longer = {name: part[name] - usual_parts[name][index] for name in part}
        phase = max(longer, key=longer.__getitem__)
        more, ratio = longer[phase], own_ms[index] / (usual_ms[index] or 1.0)
        untold = more < TELLS * (own_ms[index] - usual_ms[index])
        if ratio < STANDS_OUT or len(ranks) < 2 or untold:
            phase, more = "", 0.0
        result.append(RankTimes(rank, own_ms[index], waits[index], ratio, phase, more))
    return result


def _usual(values: Sequence[float]) -> Sequence[float]:
    """What each value is compared with."""
    return values[::-1] if len(values) == 2 else [median(values)] * len(values)


def own_phases(rank: RankSummary, wait_ms: float) -> dict[str, float]:
    """Its phases without waiting: that in collectives, and the rest, in backward."""
    phases = {phase.name: rank.phases_mean_ms.get(phase.name, 0.0) for phase in palette.PHASES}
    hidden = max(wait_ms - phases.pop("comm"), 0.0)
    phases["backward"] -= min(hidden, phases["backward"])
    return phases
