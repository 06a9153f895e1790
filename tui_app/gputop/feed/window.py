"""How far back every screen looks: all of a run that has ended, else as far as live findings do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.feed.snapshot import Snapshot

if TYPE_CHECKING:
    from gputop_probes.record.reader import RunRecord

STEPS = 1000
"""As far back as live findings look."""
RECORDS, LEAST_STEPS = 128_000, 100
"""Of hundreds of ranks fewer steps are looked at, so that all of them have about so many records:
else each look at 1024 ranks would take more than a second of CPU.
"""
FINDINGS_PERIOD_S = 2.0
"""Findings change slowly and cost more than the rest: they are evaluated this often."""
HORIZON_NS = 120 * 10**9
"""How far back charts of recent steps look."""
ALL_RECORDS_AT_MOST = 200_000
"""A run that has ended is looked at as a whole unless it has more records than this."""


def short(record: RunRecord) -> bool:
    """Whether the whole run can be judged at once."""
    return sum(len(record.steps(rank)) for rank in record.ranks()) <= ALL_RECORDS_AT_MOST


def steps_back(record: RunRecord) -> int:
    """Steps that screens look back while a run goes on."""
    return min(STEPS, max(LEAST_STEPS, RECORDS // max(len(record.ranks()), 1)))


def window_of(record: RunRecord, snapshot: Snapshot) -> tuple[int | None, str]:
    """Steps to look back, None for all of them, and the same in words."""
    if snapshot.ended and short(record):
        return None, "the whole run"
    steps = steps_back(record)
    if snapshot.summary.steps <= steps:
        return steps, "all steps so far"
    return steps, f"the last {steps:,} steps"
