"""The time from the command's start to the end of the first step, by what it went into.

The guest tells milestones (``startup`` events) with their begin and end; the first step record has
the phases of the first step itself. Where milestones overlap, the one that says more counts. What
no milestone covers is ``other``, and says what came after it. The parts add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gputop_probes.record.reader import RunRecord

Event = dict[str, Any]
OTHER = "other"
SPECIFIC = (
    "weights",
    "torch.load",
    "CUDA",
    "process group",
    "first batch",
    "first forward",
    "model",
    "import torch",
    "python",
)
"""Milestones, the ones first that say most where two overlap."""
_PHASES = {
    "data": "first batch",
    "h2d": "first batch",
    "compile": "compile",
    "forward": "first forward",
    "backward": "first backward",
    "optimizer": "first update",
}
"""What a phase of the first step is called here; the others are ``other``."""
TELLING = 0.01
"""Of the whole, from which on a part is named in a line."""


class StartupPart(NamedTuple):
    """A part of the time before the first step was done."""

    name: str
    ns: int
    site: str = ""
    """The user's line where it began."""
    before: str = ""
    """Of ``other``: the milestone that came next."""
    under_way: bool = False

    @property
    def words(self) -> str:
        """``import torch``, ``other before the model (train.py:9)``."""
        if not self.before:
            return self.name
        site = f" ({self.site})" if self.site else ""
        return f"{self.name} before {self.before}{site}"


class Startup(NamedTuple):
    """How the run came to its first step, or how far it has come."""

    rank: int | None
    """The one that the parts are of; None before any is known."""
    began_ns: int
    until_ns: int
    done: bool
    """Whether its first step has ended."""
    parts: tuple[StartupPart, ...]
    """In the order in which they began."""
    has_milestones: bool
    """Whether the guest told milestones."""

    @property
    def seconds(self) -> float:
        """All of the time."""
        return (self.until_ns - self.began_ns) / 1e9

    def words(self) -> str:
        """``import torch 1.8 s, other before model (train.py:9) 1.0 s, first batch 0.1 s``."""
        from gputop_analysis.text import duration

        threshold = TELLING * (self.until_ns - self.began_ns)
        shown = [part for part in self.parts if part.ns >= threshold]
        texts = [f"{part.words} {duration(part.ns / 1e9)}" for part in shown]
        if shown and shown[-1].under_way:
            texts[-1] += " so far"
        if not shown:
            return "nothing told apart"
        return ", ".join(texts)


class _Span(NamedTuple):
    began_ns: int
    ended_ns: int
    name: str
    site: str
    under_way: bool


def startup(record: RunRecord, now_ns: int) -> Startup | None:
    """The way to the first step of the lowest rank; None before the command has started.

    Args:
        record: of the run.
        now_ns: the end of what is looked at while there is no step.
    """
    started = [host.state.started_ns for host in record.hosts.values() if host.state.started_ns]
    if not started:
        return None
    ends = [host.state.ended_ns for host in record.hosts.values() if host.state.ended_ns]
    events = list(record.events("startup"))
    ranks = record.ranks()
    first = record.steps(ranks[0])[0] if ranks else None
    rank = ranks[0] if ranks else None
    pid = _pid_of(record, rank)
    own_events = [event for event in events if event.get("pid") == pid]
    if pid is None:
        own_events = come_furthest(events)
    if first is not None:
        until_ns = int(first["t_end_ns"])
        step_ns = until_ns - int(first["wall_ns"])
    else:
        until_ns = step_ns = min([now_ns, *ends])
    parts = split(own_events, min(started), max(step_ns, min(started)))
    if first is not None:
        phases = {name: int(first[f"{name}_ns"]) for name in _PHASES}
        parts = _with_first_step(parts, phases, until_ns - max(step_ns, min(started)))
    return Startup(rank, min(started), until_ns, first is not None, tuple(parts), bool(own_events))


def split(events: Iterable[Event], began_ns: int, until_ns: int) -> list[StartupPart]:
    """The time between two moments by milestone, in the order of their first begin.

    Args:
        events: ``startup`` events of one process.
        began_ns, until_ns: nanoseconds since the epoch.
    """
    spans = _spans(events, began_ns, until_ns)
    edges = sorted({began_ns, until_ns, *(s.began_ns for s in spans), *(s.ended_ns for s in spans)})
    parts: list[StartupPart] = []
    for low, high in pairwise(edges):
        inside = [s for s in spans if s.began_ns <= low and high <= s.ended_ns]
        if inside:
            span = min(inside, key=_place)
            _add(parts, StartupPart(span.name, high - low, span.site, "", span.under_way))
        else:
            after = [s for s in spans if s.began_ns >= high]
            following = min(after, default=None)
            if following:
                site, name = (following.site, following.name)
            else:
                site, name = ("", "")
            _add(parts, StartupPart(OTHER, high - low, site, name, following is None))
    return parts


def _spans(events: Iterable[Event], began_ns: int, until_ns: int) -> list[_Span]:
    """Begin and end of each milestone inside the time; the later event of a milestone counts."""
    spans: dict[tuple[str, int], _Span] = {}
    for event in events:
        name, begin = event["name"], event["began_ns"]
        end = event.get("ended_ns")
        earlier = spans.get((name, begin))
        site = event.get("site") or (earlier.site if earlier else "")
        low, high = max(begin, began_ns), min(end or until_ns, until_ns)
        spans[name, begin] = _Span(low, max(low, high), name, site, end is None)
    return [span for span in spans.values() if span.ended_ns > span.began_ns]


def _place(span: _Span) -> int:
    if span.name in SPECIFIC:
        return SPECIFIC.index(span.name)
    return len(SPECIFIC)


def _add(parts: list[StartupPart], part: StartupPart) -> None:
    """Put a part at the end, or add its time to the one of the same name."""
    for index, earlier in enumerate(parts):
        if (earlier.name, earlier.before) == (part.name, part.before):
            under_way = earlier.under_way or part.under_way
            parts[index] = earlier._replace(ns=earlier.ns + part.ns, under_way=under_way)
            return
    parts.append(part)


def _with_first_step(
    parts: list[StartupPart], phases: dict[str, int], step_ns: int
) -> list[StartupPart]:
    """The parts before the first step, and its own phases."""
    parts = [part._replace(under_way=False) for part in parts]
    if parts and parts[-1].name == OTHER and not parts[-1].before:
        parts[-1] = parts[-1]._replace(before="first step")
    left_ns = step_ns
    for phase, name in _PHASES.items():
        taken = min(phases[phase], left_ns)
        left_ns -= taken
        if taken:
            _add(parts, StartupPart(name, taken))
    if left_ns:
        _add(parts, StartupPart("rest of the first step", left_ns))
    return parts


def _pid_of(record: RunRecord, rank: int | None) -> int | None:
    """The first process of a rank."""
    for event in record.events("rank_start"):
        if event["rank"] == rank:
            return event.get("pid")
    return None


def come_furthest(events: list[Event]) -> list[Event]:
    """Events of the process with the most milestones."""
    by_pid: dict[int | None, list[Event]] = {}
    for event in events:
        by_pid.setdefault(event.get("pid"), []).append(event)
    return max(by_pid.values(), key=lambda some: len({e["name"] for e in some}), default=[])
