"""What ranks told in rare events, grouped by rank; over all of the run, because facts outlive a window."""

from __future__ import annotations

from typing import Any

from gputop_analysis.view import RunView

Event = dict[str, Any]


def told(view: RunView, kind: str) -> dict[int, list[Event]]:
    """Events of one type by rank, in the order written, those of the rank's last process only."""
    key = f"told {kind}"
    if key not in view.known:
        found: dict[int, list[Event]] = {}
        for event in view.record.events(kind):
            rank = event.get("rank")
            if rank in view.per_rank:
                mine = found.setdefault(rank, [])
                if mine and mine[-1].get("pid") != event.get("pid"):
                    mine.clear()
                mine.append(event)
        view.known[key] = found
    return view.known[key]
