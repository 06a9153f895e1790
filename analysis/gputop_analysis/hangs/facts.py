"""What a run's record tells of each rank as the training stood still or died of a collective."""

from __future__ import annotations

import re
from typing import Any

from gputop_analysis.hangs.call_order import Call
from gputop_analysis.hangs.cause import judge, of_one_outside
from gputop_analysis.hangs.episodes import FOR_EVER, Episode, newest_episode, standing_episode
from gputop_analysis.hangs.last_output import last_outputs
from gputop_analysis.hangs.mismatch import of_a_mismatch
from gputop_analysis.hangs.stack_calls import call_of_stack
from gputop_analysis.hangs.standing import Cause, Group, RankStanding, ThreadPlace
from gputop_analysis.hangs.user_line import user_line
from gputop_analysis.raised import fatal
from gputop_analysis.text import cut_end
from gputop_analysis.view import Array, RunView, once_per_view
from gputop_probes.record.layout import PROCESS_RANK

Event = dict[str, Any]

BEFORE_NS = 10**9
"""What happened so shortly before a silence may have begun it."""
ENOUGH_NS = 2 * 10**9
"""Between two samples that a share of a core is told from."""
_OTHER_WORK = ("eval", "checkpoint", "compile")
"""Phases of a rank that works although no step ends."""
_WANTED = ("cpu_ns_total", "run_wait_ns_total")
OUT_OF_REACH = re.compile(
    r"(?i)connection (reset|closed|refused|aborted)|read error|broken pipe|peer|socket|timed? ?out"
)
"""What ranks say of a rank that is gone."""
_OTHER_SIZE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d{1,18}) vs (\d{1,18})")
"""What gloo says as it ends a process by SIGABRT."""


@once_per_view
def cause_of(view: RunView) -> Cause | None:
    """Why the run's ranks stood still, or died for want of one of them; None where they did
    neither, and for a single rank.
    """
    if view.world_size < 2:
        return None
    episode = newest_episode(view.record)
    if episode is not None and not episode.over:
        return _cause_of_episode(view, episode)
    return _of_a_death(view)


def cause_so_far(view: RunView) -> Cause | None:
    """Who the ranks wait for in a silence that may yet end; None where that is not sure: a rank has
    not answered, or none is known to wait for it.
    """
    if view.world_size < 2 or (episode := standing_episode(view.record)) is None:
        return None
    cause = _cause_of_episode(view, episode, is_sure=True)
    if cause is None or cause.rank is None or not cause.waiting:
        return None
    return cause


def _cause_of_episode(view: RunView, episode: Episode, is_sure: bool = False) -> Cause | None:
    """The cause of a silence.

    Args:
        view: of the run.
        episode: the silence.
        is_sure: whether only what all ranks have answered, that are there and run, is judged.
    """
    suspected = episode.suspected
    since = int(suspected["t_ns"])
    first = since - int(1e9 * float(suspected.get("silent_s") or 0)) - BEFORE_NS
    standing = _standing(view, since - BEFORE_NS, episode.stopped_ns, suspected, first)
    if episode.departed is not None:
        departure = _first_to_leave(view, episode.departed, since)
        gone, left_ns = int(departure.get("rank", -1)), int(departure.get("t_ns", 0))
        cause = _of_sizes(view, gone, left_ns, standing)
        if cause is not None:
            return cause
        _note_left(standing, departure, view)
    else:
        for raised in _raised_within(view, first, since):
            _note_left(standing, raised, view)
    if is_sure and not all(map(_is_known, standing.values())):
        return None
    return judge(standing, groups_of(view))


def _is_known(standing: RankStanding) -> bool:
    """Whether a rank has told where it is, or why it cannot, and that is no work that others are to
    wait for.
    """
    if standing.phase in _OTHER_WORK:
        return False
    return standing.answered or bool(standing.left) or standing.state in ("T", "t")


def _raised_within(view: RunView, from_ns: int, until_ns: int) -> list[Event]:
    """Exceptions of ranks whose process stays, as a thread of theirs runs on, and others wait."""
    return [
        event
        for event in fatal(view.record)
        if from_ns <= event.get("t_ns", 0) <= until_ns
        and not OUT_OF_REACH.search(str(event.get("message") or ""))
    ]


def _first_to_leave(view: RunView, departed: Event, until_ns: int) -> Event:
    """Of the ranks that left before a standstill, the first that others lost: ranks that could not
    reach it leave as well, and their news may come before its own.
    """
    lonely = {
        event.get("rank")
        for event in view.record.events("exception")
        if OUT_OF_REACH.search(str(event.get("message") or ""))
    }
    since = int(departed.get("t_ns", 0))
    leavers = [
        event
        for event in view.record.events("rank_lost", "goodbye")
        if since <= event.get("t_ns", 0) <= until_ns and event.get("rank") not in lonely
    ]
    return min(leavers, key=lambda event: event.get("t_ns", 0), default=departed)


def _of_a_death(view: RunView) -> Cause | None:
    """Of a run whose ranks failed: which one had left its program, else which was the first that
    the others could not reach.
    """
    raised = fatal(view.record)
    if not raised or not all(OUT_OF_REACH.search(str(e.get("message") or "")) for e in raised):
        return None
    first = int(raised[0].get("t_ns", 0))
    standing = _standing(view, first - 30 * 10**9, FOR_EVER, {}, first)
    failed = {int(event.get("rank", -1)) for event in raised}
    departures = view.record.events("rank_lost", "goodbye")
    leavers = [event for event in departures if event.get("rank") not in failed]
    departure = min(leavers, key=lambda event: event.get("t_ns", 0), default=None)
    if departure is None:
        return None
    _note_left(standing, departure, view)
    gone, groups = int(departure["rank"]), groups_of(view)
    return _of_sizes(view, gone, first, {}) or of_one_outside(gone, standing, groups)


def _of_sizes(
    view: RunView, gone: int, first_ns: int, waiting: dict[int, RankStanding]
) -> Cause | None:
    """The cause where gloo ended a rank as it received what it did not wait for; else None.

    Args:
        view: of the run.
        gone: the rank that ended.
        first_ns: when the first of the others failed.
        waiting: ranks that stand still; those that failed are read from what they sent then.
    """
    matches = (_OTHER_SIZE.search(text) for text in last_outputs(view))
    match = next((match for match in matches if match), None)
    if match is None:
        return None
    failed = {int(event.get("rank", -1)) for event in fatal(view.record)}
    standing = _standing(view, first_ns - 30 * 10**9, FOR_EVER, {}, first_ns)
    others = {rank: rank_standing for rank, rank_standing in waiting.items() if rank_standing.calls}
    others.update({rank: standing[rank] for rank in failed})
    others.pop(gone, None)
    sizes = int(match[1]), int(match[2])
    return of_a_mismatch(others, gone, sizes, groups_of(view))


def _note_left(standing: dict[int, RankStanding], event: Event, view: RunView) -> None:
    """Mark a rank as gone."""
    rank = int(event.get("rank", -1))
    before = standing.get(rank, RankStanding())
    raised = next((e for e in view.record.events("exception") if e.get("rank") == rank), None)
    departure, words = "died", str(event.get("reason") or "")
    if raised is not None and not raised.get("thread"):
        departure, words = (
            "raised",
            f"{raised.get('class')}: {cut_end(str(raised.get('message') or ''), 80)}",
        )
    elif event["type"] == "goodbye":
        departure, words = "ended early", ""
    step = event.get("steps", event.get("step"))
    standing[rank] = RankStanding(
        calls=before.calls,
        places=before.places,
        step=int(step) if step is not None else before.step,
        left=departure,
        left_ns=int(event.get("t_ns", 0)),
        left_words=words,
    )


def _standing(
    view: RunView, from_ns: int, until_ns: int, suspected: Event, silent_since: int
) -> dict[int, RankStanding]:
    dumps = _first_by_rank(view, "stack_dump", from_ns, until_ns)
    calls = {
        rank: [call_of(dump["collective"])]
        for rank, dump in dumps.items()
        if dump.get("collective")
    }
    calls.update(_calls(view, from_ns, until_ns))
    if not any(calls.values()):
        of_stacks = {rank: call_of_stack(dump) for rank, dump in dumps.items()}
        calls = {rank: [call] for rank, call in of_stacks.items() if call is not None}
    threads = {int(t["rank"]): t for t in suspected.get("threads") or () if "rank" in t}
    standings: dict[int, RankStanding] = {}
    for rank in set(dumps) | set(calls) | set(threads) | set(view.ranks):
        dump, thread = dumps.get(rank, {}), threads.get(rank, {})
        frames = (dump.get("threads") or [{}])[0].get("frames") or [""]
        standings[rank] = RankStanding(
            calls=tuple(calls.get(rank, ())),
            places=_places(dump, frames),
            frame=str(frames[0]),
            handled=_handled(dump.get("handling")),
            state=str(thread.get("state") or ""),
            system_call=str(thread.get("call") or ""),
            path=str(thread.get("path") or ""),
            cpu_share=_cpu_share(view, rank, silent_since, until_ns),
            phase=str(dump.get("phase") or ""),
            step=int(dump.get("step", -1)),
            answered=bool(dump) or not suspected,
            root=dump.get("root"),
        )
    return standings


def _first_by_rank(view: RunView, kind: str, from_ns: int, until_ns: int) -> dict[int, Event]:
    first: dict[int, Event] = {}
    for event in view.record.events(kind):
        if from_ns <= event.get("t_ns", 0) <= until_ns and event.get("rank") is not None:
            first.setdefault(int(event["rank"]), event)
    return first


def _calls(view: RunView, from_ns: int, until_ns: int) -> dict[int, list[Call]]:
    """Calls of each rank, in order of time; of several sendings the first that was made for the
    hang or the failure, as others tell of a moment before it.
    """
    sendings: dict[int, list[Event]] = {}
    for event in view.record.events("flight_recorder"):
        if event.get("rank") is not None and from_ns <= event.get("t_ns", 0) <= until_ns:
            sendings.setdefault(int(event["rank"]), []).append(event)
    parts = {rank: _first_sending(events) for rank, events in sendings.items()}
    calls = {}
    for rank, sent in parts.items():
        entries = [entry for event in sent for entry in event.get("entries", ())]
        calls[rank] = sorted(map(call_of, entries), key=lambda call: call.at_ns)
    return calls


def _first_sending(events: list[Event]) -> list[Event]:
    """The parts of one sending, in order."""
    with_a_reason = [event for event in events if event.get("reason")]
    parts: list[Event] = []
    for event in with_a_reason or events:
        if not parts or event.get("part", 0) == len(parts):
            parts.append(event)
    return parts


def call_of(entry: Event) -> Call:
    """A call from an entry of a ``flight_recorder`` event."""
    peer = entry.get("peer")
    operation = str(entry.get("op") or "")
    if entry.get("p2p") and peer is None:
        numbers = re.findall(r"\d+", operation.partition(" ")[2])
        peer = int(numbers[-1]) if numbers else -1
    return Call(
        group=str(entry.get("group", "0")),
        number=int(entry.get("seq", -1)),
        operation=operation,
        shapes=str(entry.get("shapes") or entry.get("bytes") or ""),
        site=str(entry.get("site") or ""),
        peer=int(peer) if entry.get("p2p") and peer is not None else None,
        done=entry.get("state") in ("completed", "issued"),
        at_ns=int(entry.get("created_ns") or 0),
    )


def groups_of(view: RunView) -> dict[str, Group]:
    """Groups by name, as the ranks tell them; a name that means different ranks on different ranks,
    such as that of each tensor-parallel group, is none.
    """
    groups: dict[str, Group] = {}
    for event in view.record.events("flight_recorder"):
        for entry in event.get("groups") or ():
            group = Group(str(entry.get("description") or ""), frozenset(entry.get("ranks") or ()))
            groups.setdefault(str(entry.get("name")), group)
    groups.setdefault("0", Group("default_pg", frozenset(view.ranks)))
    return groups


def _places(dump: Event, frames: list[str]) -> tuple[ThreadPlace, ...]:
    """Lines of the user's; from an older guest's dump the innermost only."""
    places = tuple(_place(place) for place in dump.get("places") or ())
    line = user_line(list(map(str, frames))) if not places and dump else None
    if line:
        site, _, function = line.rpartition(" ")
        return (ThreadPlace(site, function),)
    return places


def _place(place: Event) -> ThreadPlace:
    return ThreadPlace(
        str(place.get("site") or ""),
        str(place.get("function") or ""),
        tuple(map(str, place.get("blocks") or ())),
        str(place.get("code") or ""),
    )


def _handled(exception: Event | None) -> str:
    if not exception:
        return ""
    where = f", raised at {exception['site']}" if exception.get("site") else ""
    return f"{exception.get('class')}: {cut_end(str(exception.get('message') or ''), 80)}{where}"


def _cpu_share(view: RunView, rank: int, since: int, until: int) -> float:
    """Of a core, wanted by a rank's process while it was silent; 0 where it was not sampled."""
    host = view.record.hosts.get(view.host_of(rank))
    if host is None:
        return 0.0
    rows = host.process.rows[-20_000:]
    inside = (rows["t_ns"] >= since + 2 * BEFORE_NS) & (rows["t_ns"] <= min(until, FOR_EVER - 1))
    rows = rows[inside & (rows["kind"] == PROCESS_RANK) & (rows["rank"] == rank)]
    if len(rows) < 2 or rows["t_ns"][-1] - rows["t_ns"][0] < ENOUGH_NS:
        return 0.0
    return wanted_share(rows)


def wanted_share(rows: Array) -> float:
    """Of a core, used by one process or waited for by its training thread between two samples.

    What spins among programs that take the cores from it gets a part of one and wants a whole one.
    """
    first, last = rows[0], rows[-1]
    wanted_ns = sum(int(last[name]) - int(first[name]) for name in _WANTED)
    return wanted_ns / float(last["t_ns"] - first["t_ns"])
