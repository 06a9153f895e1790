"""What agents sent on request."""

from __future__ import annotations

from gputop.feed.snapshot import Notice
from gputop_probes.record.reader import RunRecord

NOTICE_TYPES = ("profile", "stack_dump", "memory_snapshot")


def notices(record: RunRecord) -> tuple[Notice, ...]:
    """What agents sent on request, oldest first; without the stacks of a look at a long silence,
    which nobody asked for.
    """
    asked = [event for event in record.events(*NOTICE_TYPES) if event.get("reason") != "standing"]
    return tuple(Notice(e.get("t_ns", 0), e["type"], e.get("rank"), e) for e in asked)
