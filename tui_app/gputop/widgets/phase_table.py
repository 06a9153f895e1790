"""The phases of a few ranks below each other."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from gputop import palette
from gputop.render import numbers
from gputop.render.rows import Row, left, right
from gputop.widgets.canvas import upon_cursor
from gputop.widgets.standings import RankTimes, own_phases, standings

if TYPE_CHECKING:
    from gputop_analysis.model import RankSummary

PHASE_CELLS = 11
STANDS_OUT = 1.2
"""Times the median of the ranks, from which on a phase of a rank is marked."""


def draw(ranks: tuple[RankSummary, ...], width: int, cursor: int | None = None) -> list[Row]:
    """Mean milliseconds a step of each rank's phases without waiting, and of its waiting; what is
    well above the other ranks is marked, and the rank at ``cursor``.
    """
    compared = standings(ranks)
    with_wait = any(standing.wait_ms for standing in compared)
    times_ms = [_times_ms(standing, with_wait) for standing in compared]
    longest_ms = {name: max(times[name] for times in times_ms) for name in times_ms[0]}
    names = _longest_phases(longest_ms, max((width - 7) // PHASE_CELLS, 1))
    digits = 2
    if names:
        digits = numbers.digits_for(max(max(times.values()) for times in times_ms))
    typical_ms = {name: median(times[name] for times in times_ms) for name in names}
    head = left("rank ms", 7) + "".join(right(name, PHASE_CELLS) for name in names)
    rows: list[Row] = [[(head, "muted")]]
    for index, (rank, times) in enumerate(zip(ranks, times_ms, strict=True)):
        row: Row = [(left(f"{rank.rank:>4}", 7), "text")]
        for name in names:
            text = numbers.ms_column(times[name], digits)
            if name != "wait" and _is_slow(times[name], typical_ms[name], rank):
                row.append((right("▲" + text, PHASE_CELLS), "high"))
            else:
                row.append((right(text, PHASE_CELLS), "text"))
        rows.append(upon_cursor(row) if index == cursor else row)
    return rows


def _longest_phases(longest_ms: dict[str, float], count: int) -> list[str]:
    """So many names of the longest phases, in the order of a step."""
    names = [name for name, ms in longest_ms.items() if ms > 0]
    longest = sorted(names, key=lambda name: -longest_ms[name])[:count]
    return [name for name in names if name in longest]


def _is_slow(ms: float, typical_ms: float, rank: RankSummary) -> bool:
    return ms > STANDS_OUT * typical_ms and ms - typical_ms > 0.02 * rank.step_time_mean_ms


def _times_ms(standing: RankTimes, with_wait: bool) -> dict[str, float]:
    """Milliseconds by phase; with ``wait`` in place of ``comm`` where any rank waits."""
    if with_wait:
        return own_phases(standing.rank, standing.wait_ms) | {"wait": standing.wait_ms}
    means = standing.rank.phases_mean_ms
    return {phase.name: means.get(phase.name, 0.0) for phase in palette.PHASES}
