"""When a run stood still by itself: what the recorder suspected, less what is only the doing of
whoever stopped it.

A hung run is stopped by hand, and its ranks die one after the other. Those that die later stand
still a little longer, with other stacks, and say nothing about why the run hung: a standstill is
judged on what was recorded up to the stop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gputop_probes.record.reader import RunRecord

Event = dict[str, Any]

FOR_EVER = 2**63
_SAME_MOMENT_NS = 2 * 10**9
"""A rank's last step and the news of what ended it may come in either order within this time."""
HANG, STANDING = "hang_suspected", "standing"
"""Suspicions: that a run hangs, and that it is worth a look long before."""
_TYPES = (
    "hang_over",
    "interrupt",
    "rank_start",
    "rank_lost",
    "goodbye",
    "run_end",
)


@dataclass
class Episode:
    """One time without steps, from the suspicion on."""

    suspected: Event
    departed: Event | None
    """The first rank gone when the run began to stand still: ``rank_lost`` or ``goodbye``."""
    over: bool = False
    """Steps came again."""
    stopped_ns: int = FOR_EVER
    """From here on the stop speaks, not the hang: an interrupt, a rank gone, the end."""
    restarted: bool = False
    """Another attempt began after it."""


@dataclass
class _Course:
    """What has happened up to an event."""

    last_steps_ns: list[int]
    """End of the last step of each rank."""
    suspicion: str = HANG
    """The type of event that an episode begins with."""
    episodes: list[Episode] = field(default_factory=list)
    departed: dict[int, Event] = field(default_factory=dict)
    """By rank: how it left; in the order of leaving."""
    interrupted_ns: int = -FOR_EVER

    @property
    def open(self) -> Episode | None:
        """The episode that goes on."""
        newest = self.episodes[-1] if self.episodes else None
        if newest is None or newest.over or newest.restarted:
            return None
        return newest

    def take(self, event: Event) -> None:
        """Go on by one event."""
        event_type, now_ns = event["type"], int(event.get("t_ns", 0))
        if event_type == self.suspicion:
            self._suspect(event, now_ns)
        elif event_type == "hang_over":
            self._resolve(event)
        elif event_type == "rank_start":
            self.departed.pop(_rank(event), None)
            if self.open is not None and self.open.stopped_ns < FOR_EVER:
                self.open.restarted = True
        else:
            self._stop(event, now_ns)

    def _suspect(self, event: Event, now: int) -> None:
        began = now - int(1e9 * float(event.get("silent_s") or 0))
        stopped = self.interrupted_ns >= began - _SAME_MOMENT_NS
        if (self.open is None or self.suspicion == STANDING) and not stopped:
            self.episodes.append(Episode(event, next(iter(self.departed.values()), None)))

    def _resolve(self, event: Event) -> None:
        episode = self.open
        if episode is None or self.suspicion == STANDING:
            return
        suspected_ns = int(episode.suspected.get("t_ns", 0))
        steps_came = max(self.last_steps_ns, default=0) > suspected_ns
        # a run that goes on and then ends is gone before the recorder has looked again
        unstopped = event.get("reason") != "gone" and episode.stopped_ns == FOR_EVER
        episode.over = unstopped or steps_came

    def _stop(self, event: Event, now: int) -> None:
        if event["type"] == "interrupt":
            self.interrupted_ns = now
        elif event["type"] != "run_end":
            self.departed.setdefault(_rank(event), event)
        if self.open is not None:
            self.open.stopped_ns = min(self.open.stopped_ns, now)


def newest_episode(record: RunRecord) -> Episode | None:
    """The newest standstill of a run that nobody's stop brought about, or None."""
    return _newest(record, HANG)


def standing_episode(record: RunRecord) -> Episode | None:
    """The newest silence that was looked at and that no step has ended, or None."""
    episode = _newest(record, STANDING)
    if episode is None or episode.over or episode.restarted:
        return None
    return episode


def _newest(record: RunRecord, suspicion: str) -> Episode | None:
    ends = [record.steps(rank)["t_end_ns"] for rank in record.ranks()]
    course = _Course([int(times[-1]) for times in ends if len(times)], suspicion)
    for event in sorted(record.events(suspicion, *_TYPES), key=lambda e: e.get("t_ns", 0)):
        course.take(event)
    newest = course.episodes[-1] if course.episodes else None
    if newest is not None and suspicion == STANDING:
        newest.over = max(course.last_steps_ns, default=0) > int(newest.suspected.get("t_ns", 0))
    return newest


def _rank(event: Event) -> int:
    rank = event.get("rank")
    return int(rank) if rank is not None else -1
