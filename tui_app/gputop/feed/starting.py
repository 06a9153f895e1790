"""What the processes of a run have reached before its first step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from gputop_analysis.startup import Event, come_furthest

if TYPE_CHECKING:  # a panel needs the type below, and NumPy would delay the first frame
    from gputop_probes.record.reader import RunRecord


class Starting(NamedTuple):
    """Milestones of the process that has come furthest, and how many others have come as far."""

    began_ns: int
    events: tuple[Event, ...]
    reached: dict[str, int]
    """Processes that have a milestone behind them, by its name."""
    processes: int


def starting(record: RunRecord) -> Starting | None:
    """How far the run has come; None once a step has ended, and before its command has begun."""
    started = [host.state.started_ns for host in record.hosts.values() if host.state.started_ns]
    if not started or record.ranks():
        return None
    events = list(record.events("startup"))
    behind = {(e["name"], e.get("pid")) for e in events if e.get("ended_ns")}
    return Starting(
        began_ns=min(started),
        events=tuple(come_furthest(events)),
        reached=dict(Counter(name for name, _ in behind)),
        processes=len({event.get("pid") for event in events}),
    )
