"""Two runs compared: what changed, what surely got slower, by how much, where losses part."""

from __future__ import annotations

from gputop_analysis.diff.caveats import caveats
from gputop_analysis.diff.changes import changes
from gputop_analysis.diff.data import diff_data
from gputop_analysis.diff.loss import compare_loss
from gputop_analysis.diff.model import (
    Diff,
    FindingsDiff,
    LossDiff,
    MemoryDiff,
    PhaseDiff,
    RankDiff,
    SettingChange,
    SpeedDiff,
)
from gputop_analysis.diff.speed import compare_speed, judge_speed
from gputop_analysis.diff.text import diff_text
from gputop_analysis.series import Array
from gputop_analysis.summary import steps_done
from gputop_analysis.units import GIB
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

__all__ = [
    "Diff",
    "FindingsDiff",
    "LossDiff",
    "MemoryDiff",
    "PhaseDiff",
    "RankDiff",
    "SettingChange",
    "SpeedDiff",
    "compare",
    "diff_data",
    "diff_text",
]

THRESHOLD = 0.05
_MEMORY = (
    ("peak allocated", "peak_allocated_bytes"),
    ("peak reserved", "reserved_bytes"),
    ("peak RSS", "rss_bytes"),
)


def compare(a: RunRecord, b: RunRecord, threshold: float = THRESHOLD) -> Diff:
    """Compare run ``b`` with the baseline ``a``.

    It is a regression where B is surely slower by ``threshold``, or its loss becomes NaN and A's
    does not. Runs that do different work are not compared in speed.
    """
    first, second = RunView(a), RunView(b)
    speed, caveats_found = compare_speed(first, second), caveats(first, second)
    comparable = all(caveat.comparable for caveat in caveats_found)
    return Diff(
        a_name=a.name,
        b_name=b.name,
        a_steps=_steps(first),
        b_steps=_steps(second),
        threshold=threshold,
        judgement=judge_speed(speed, threshold) if comparable else "not comparable",
        speed=speed,
        changes=changes(first, second),
        memory=tuple(_memory(first, second)),
        loss=compare_loss(first, second),
        caveats=caveats_found,
    )


def _steps(view: RunView) -> int:
    return min((steps_done(view.record, rank) for rank in view.ranks), default=0)


def _memory(a: RunView, b: RunView) -> list[MemoryDiff]:
    peaks = []
    for name, column in _MEMORY:
        peaks.append(MemoryDiff(name, _peak_gib(a, column), _peak_gib(b, column)))
    return [peak for peak in peaks if peak.a_gib > 0 or peak.b_gib > 0]


def _peak_gib(view: RunView, column: str) -> float:
    peaks: list[Array] = [
        series.rows[column].max() for series in view.per_rank.values() if len(series.rows)
    ]
    return float(max(peaks, default=-1)) / GIB
