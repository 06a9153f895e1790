"""Exceptions of a run: those that ended a process, and those that ended a thread of it only."""

from __future__ import annotations

from typing import Any

from gputop_probes.record.reader import RunRecord

Event = dict[str, Any]

_USERS_OWN = ("KeyboardInterrupt", "SystemExit")
_WENT_ON_STEPS = 2
"""So many steps after the one of an exception, and its process goes on."""


def fatal(record: RunRecord) -> list[Event]:
    """Exceptions that ended a process, the earliest first, not those only reported."""
    raised = [event for event in _in_order(record) if not event.get("thread")]
    return [event for event in raised if not _went_on(record, event)]


def of_threads(record: RunRecord) -> list[Event]:
    """Exceptions that ended a thread beside the main one, the earliest first."""
    return [event for event in _in_order(record) if event.get("thread")]


def _in_order(record: RunRecord) -> list[Event]:
    raised = (event for event in record.events("exception") if event.get("class") not in _USERS_OWN)
    return sorted(raised, key=lambda event: event.get("t_ns", 0))


def _went_on(record: RunRecord, exception: Event) -> bool:
    """Whether the process that raised it trained on; a restarted one is another process."""
    rank, step, at = exception.get("rank"), exception.get("step"), int(exception.get("t_ns", 0))
    if (
        rank not in record.ranks()
        or step is None
        or int(record.steps(rank)["step"][-1]) < int(step) + _WENT_ON_STEPS
    ):
        return False
    starts = (e for e in record.events("rank_start") if e.get("rank") == rank and e.get("attempt"))
    restarts = (e.get("t_ns", 0) for e in starts)
    until = min((t for t in restarts if t > at), default=None)
    ends = record.steps(rank)["t_end_ns"]
    later = ends[ends > at]
    if until is not None:
        return bool((later < until).any())
    return len(later) > 0
