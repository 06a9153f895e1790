"""What agents sent on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gputop.feed.snapshot import Notice, Snapshot

if TYPE_CHECKING:
    from gputop_probes.record.reader import RunRecord

NOTICE_TYPES = ("profile", "stack_dump", "memory_snapshot")


def notices(record: RunRecord) -> tuple[Notice, ...]:
    """What agents sent on request, oldest first; without the stacks of a look at a long silence,
    which nobody asked for.
    """
    requested = [
        event for event in record.events(*NOTICE_TYPES) if event.get("reason") != "standing"
    ]
    return tuple(Notice(e.get("t_ns", 0), e["type"], e.get("rank"), e) for e in requested)


def training_frames(notice: Notice) -> tuple[str, ...]:
    """Frames of the training thread, the innermost first; else of the first thread."""
    threads: list[dict[str, Any]] = list(notice.body.get("threads") or [])  # type: ignore[call-overload]
    training = [thread for thread in threads if thread.get("training")] or threads[:1]
    return tuple(str(frame) for thread in training for frame in thread.get("frames") or [])


def standing_in(snapshot: Snapshot) -> dict[int, str]:
    """Where each rank stands that sent its stacks since the last step; none while steps come."""
    run = snapshot.summary
    since_ns = run.now_ns - int(run.silent_s * 1e9)
    places = {}
    for notice in snapshot.notices if run.stands else ():
        if notice.kind == "stack_dump" and notice.rank is not None and notice.t_ns >= since_ns:
            places[notice.rank] = next(iter(training_frames(notice)), "")
    return places
