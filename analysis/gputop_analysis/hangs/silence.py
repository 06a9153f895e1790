"""A run of which no step comes at the moment: since when, and what it does meanwhile."""

from __future__ import annotations

import numpy as np

from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

LEAST_S = 10.0
"""Figures are sent within two seconds and rates look ten back: a shorter silence is none."""
USUAL_STEPS = 3.0
"""Times the slow steps of the window (95 of 100 are faster), from which on a step is late."""
_SLOW = 0.95
_ONE_SENDING_NS = 10**9
"""A rank sends what it saw of each phase one after the other."""
_OF_ALL = ("eval", "checkpoint", "compile")
"""Phases that are the run's even where one rank is in them."""
_DOING = {
    "eval": "evaluating",
    "checkpoint": "saving a checkpoint",
    "compile": "compiling",
    "data": "waiting for a batch",
}


def silence_s(view: RunView, now_ns: int) -> float:
    """Seconds since the newest step of any rank; 0 where that is no longer than steps may take."""
    tables = [series for series in view.per_rank.values() if len(series.rows)]
    if not tables:
        return 0.0
    newest = max(tables, key=lambda series: int(series.rows["t_end_ns"][-1]))
    silent = (now_ns - int(newest.rows["t_end_ns"][-1])) / 1e9
    usual = float(np.quantile(newest.wall_ms, _SLOW)) / 1e3
    return silent if silent > max(LEAST_S, USUAL_STEPS * usual) else 0.0


def doing_since(record: RunRecord, since_ns: int) -> str:
    """What the newest stacks say it does: ``evaluating``; empty: none, or it waits. What one rank
    does is told where the others wait for it.
    """
    looks = [e for e in record.events("stacks", "stack_dump") if e.get("t_ns", 0) > since_ns]
    if not looks:
        return ""
    newest_ns = max(event["t_ns"] for event in looks)
    together = [event for event in looks if event["t_ns"] > newest_ns - _ONE_SENDING_NS]
    most_seen = max(together, key=lambda event: event.get("total") or 1)
    for event in together:
        if event.get("type") == "stack_dump" and event.get("phase") in _OF_ALL:
            return _DOING[event["phase"]]
    return _DOING.get(str(most_seen.get("phase")), "")
