"""Ranks that ended in order, and those that vanished."""

from __future__ import annotations

from gputop_analysis.view import RunView


def said_goodbye(view: RunView) -> set[int | None]:
    """Ranks that ended in order."""
    return {e.get("rank") for e in view.record.events("goodbye")}


def first_lost(view: RunView) -> tuple[int | None, str]:
    """The rank that first vanished without goodbye, and how; a single rank is meant anyway."""
    if len(view.ranks) == 1:
        return view.ranks[0], ""
    in_order = said_goodbye(view)
    lost = [e for e in view.record.events("rank_lost") if e.get("rank") not in in_order]
    if not lost:
        return None, ""
    first = min(lost, key=lambda event: event.get("t_ns", 0))
    return int(first["rank"]), str(first.get("reason") or "gone")
