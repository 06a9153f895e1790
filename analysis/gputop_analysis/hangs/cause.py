"""Who holds up a training of several ranks, and what that rank did: from stacks, the last
collectives of each rank by group, messages between ranks, and what ``/proc`` tells.

Ranks wait for the members of a group that have not come to a collective, and for the peer of a
message. Followed to its end, that leads to a rank that waits for nobody: what it does is the kind.
Where all wait, one has left its program: its calls do not go on as they went before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from gputop_analysis.hangs.call_order import Call, Deviation
from gputop_analysis.hangs.departures import (
    call_words,
    departure_of,
    deviations_of,
    first_to_deviate,
    loop_left,
)
from gputop_analysis.hangs.queued_calls import Calls, first_difference, holding_up, is_queued
from gputop_analysis.hangs.stack_calls import are_from_stacks, judge_stacks
from gputop_analysis.hangs.standing import Cause, Groups, Ranks, RankStanding
from gputop_analysis.hangs.who_waits import unclear, waiting_words
from gputop_analysis.text import rank_list

BUSY_SHARE = 0.9
"""Of a core, used by a thread or process that computes or spins."""
MISMATCHES = (
    "skipped",
    "swallowed an exception",
    "other operation",
    "other size",
    "other order",
    "other source",
    "message missing",
    "different collectives",
)
"""Kinds of ranks that wait, though not for the same."""
_KIND_OF_CALL = {
    "sleep": "sleeps",
    "pause": "sleeps",
    "futex": "lock",
    "lock": "lock",
    "lock a file": "lock",
    "read": "reads",
    "recv": "reads",
    "poll": "reads",
    "select": "reads",
    "accept": "reads",
    "connect": "reads",
    "open": "opens",
    "write": "writes",
    "send": "writes",
    "sync": "writes",
    "wait": "waits for a process",
}
_WORDS = {
    "stopped": "is stopped by a signal (state T)",
    "died": "is gone",
    "ended early": "has ended its training",
    "raised": "has failed",
    "no answer": "does not answer: its interpreter is held by native code",
    "loader": "waits for a batch",
    "storage": "waits for a disk (state D)",
    "endless loop": "computes without end",
    "sleeps": "sleeps",
    "lock": "waits for a lock",
    "reads": "waits to read",
    "writes": "waits to write",
    "opens": "waits for a file to open",
    "waits for a process": "waits for a process",
    "store": "waits for a key of the store, which the other ranks set when they come there",
    "new group": "makes a process group, and waits for ranks that do not",
    "elsewhere": "is elsewhere",
}
_OF_NEW_GROUPS = ("_new_process_group_helper", "_new_group_with_tag", "_store_based_barrier")
_STORE_CALL = re.compile(r"(?i)store\w*(\(\))?\.(wait|get)\(")


def judge(ranks: Ranks, groups: Groups) -> Cause | None:
    """The cause; None where nobody waits for anybody."""
    awaited = _awaited(ranks, groups)
    idle = [rank for rank, standing in ranks.items() if standing.left or standing.pending is None]
    roots = [rank for rank in idle if awaited[rank] or ranks[rank].left or len(idle) == 1]
    at_the_end = _still_at_the_end(idle, ranks, awaited)
    if at_the_end:
        return of_one_outside(_worst(at_the_end, ranks, awaited), ranks, groups)
    if roots:
        return of_one_outside(_worst(roots, ranks, awaited), ranks, groups)
    waiting = {rank: standing for rank, standing in ranks.items() if standing.pending is not None}
    outside = [rank for rank in idle if not ranks[rank].is_in_distributed]
    if len(outside) == 1 and len(idle) > 1 and ranks[outside[0]].answered:
        return of_one_outside(outside[0], ranks, groups)
    if len(waiting) < 2:
        return None
    if are_from_stacks(waiting):
        return judge_stacks(waiting, ranks, groups)
    calls = {rank: standing.calls for rank, standing in waiting.items()}
    if is_queued(calls):
        return _all_queued(calls, ranks, groups)
    return _all_wait(waiting, ranks, groups)


def _still_at_the_end(idle: list[int], ranks: Ranks, awaited: Counter[int]) -> list[int]:
    """Ranks that have made all their steps and do not end, where the others have ended well and
    nobody waits for these.
    """
    ended = [rank for rank in idle if ranks[rank].left]
    there = [rank for rank in ranks if not ranks[rank].left]
    if not ended or any(ranks[rank].left != "ended early" or awaited[rank] for rank in ended):
        return []
    are_through = all(rank in idle and _is_through(ranks[rank], ranks) for rank in there)
    return there if are_through else []


def _awaited(ranks: Ranks, groups: Groups) -> Counter[int]:
    """How many ranks wait for each."""
    last = _last_numbers(ranks)
    awaited: Counter[int] = Counter()
    for rank, standing in ranks.items():
        call = standing.pending
        if call is not None and not standing.left:
            awaited.update(_absent(rank, call, groups, last))
    return awaited


def _all_queued(calls: Calls, ranks: Ranks, groups: Groups) -> Cause:
    """Each has calls on its device, its program may be elsewhere: how far it came tells."""
    behind = holding_up(calls, {name: group.ranks for name, group in groups.items()})
    if behind:
        awaited = Counter({rank: len(waiting) for rank, waiting in behind.items()})
        return of_one_outside(_worst(list(behind), ranks, awaited), ranks, groups)
    difference = first_difference(calls)
    if difference is None or len(difference.odd) != 1:
        return unclear({rank: ranks[rank] for rank in calls}, ranks, groups)
    rank = difference.odd[0]
    call = difference.calls[rank]
    others = [other for other in calls if other != rank]
    usual = next(other for key, other in difference.calls.items() if key != rank)
    return Cause(
        kind="other size" if difference.by_size else "other operation",
        rank=rank,
        words=f"rank {rank} calls {call_words(call, groups)} where the others call "
        f"{call_words(usual, groups)}",
        site=call.site or None,
        waiting=waiting_words(others, ranks, groups),
    )


def _last_numbers(ranks: Ranks) -> dict[tuple[str, int], int]:
    """The newest number of each group on each rank."""
    numbers: dict[tuple[str, int], int] = {}
    for rank, standing in ranks.items():
        for call in standing.calls:
            if call.peer is None:
                key = call.group, rank
                numbers[key] = max(numbers.get(key, -1), call.number)
    return numbers


def _absent(
    rank: int, call: Call, groups: Groups, last: Mapping[tuple[str, int], int]
) -> Iterable[int]:
    """Ranks that a call waits for."""
    if call.peer is not None:
        return [call.peer]
    members = groups[call.group].ranks if call.group in groups else ()
    return [
        member
        for member in members
        if member != rank and last.get((call.group, member), -1) < call.number
    ]


def _worst(roots: list[int], ranks: Ranks, awaited: Counter[int]) -> int:
    """Of several that wait for nobody, the one that left first, else the one that most wait
    for.
    """
    departed = [rank for rank in roots if ranks[rank].left]
    if departed:
        return min(departed, key=lambda rank: ranks[rank].left_ns)
    return max(roots, key=lambda rank: (awaited[rank], -ranks[rank].step, -rank))


def of_one_outside(rank: int, ranks: Ranks, groups: Groups) -> Cause:
    """The cause where a rank that waits for nobody is the one that the others wait for."""
    standing = ranks[rank]
    waiting = [other for other in ranks if other != rank and ranks[other].pending is not None]
    kind = _doing(standing, ranks, waiting)
    site = None
    if standing.places and not standing.left:
        site = standing.places[0].spot
    return Cause(
        kind=kind,
        rank=rank,
        words=_outside_words(rank, kind, site, ranks, waiting),
        site=site,
        waiting=waiting_words(waiting, ranks, groups),
        is_at_the_end=_is_through(standing, ranks),
    )


def _outside_words(rank: int, kind: str, site: str | None, ranks: Ranks, waiting: list[int]) -> str:
    standing = ranks[rank]
    if kind == "ended early":
        words = f"rank {rank} ended its training after {standing.step:,} steps, the others go on"
        loop = loop_left(standing, ranks, waiting)
        return f"{words}: it has left the loop at {loop}" if loop else words
    if kind == "handles an exception":
        return f"rank {rank} is stuck at {site} as it handles {standing.handled}"
    words = f"rank {rank} {_WORDS.get(kind, kind)}"
    if site:
        words = f"rank {rank} is stuck at {site}: it {_WORDS.get(kind, kind)}"
    if _is_through(standing, ranks):
        words += f", after its last step: {rank_list(_ended(ranks))} ended"
    if kind in ("died", "raised") and standing.left_words:
        return f"{words} ({standing.left_words})"
    if kind in ("reads", "writes", "storage") and standing.path:
        return f"{words}: {standing.path}"
    return words


def _is_through(standing: RankStanding, ranks: Ranks) -> bool:
    """Whether a rank is in the last step of those that have ended well, or beyond it."""
    last_step = max((ranks[rank].step for rank in _ended(ranks)), default=0)
    return last_step > 0 and not standing.left and standing.step + 1 >= last_step


def _ended(ranks: Ranks) -> list[int]:
    return [rank for rank, standing in ranks.items() if standing.left == "ended early"]


def words_so_far(cause: Cause) -> str:
    """The cause's sentence while it is not known whether the rank goes on."""
    return cause.words.replace("is stuck at", "stands at").replace(
        "computes without end", "computes"
    )


def _doing(standing: RankStanding, ranks: Ranks, others: list[int]) -> str:
    if standing.left:
        return standing.left
    if standing.state in ("T", "t"):
        return "stopped"
    if standing.handled and standing.cpu_share < BUSY_SHARE:
        return "handles an exception"
    if standing.state == "D" and standing.phase in ("data", "checkpoint", "other", "eval"):
        return "storage"
    if not standing.answered:
        return "no answer"
    if standing.phase == "data" and standing.cpu_share < BUSY_SHARE:
        return "loader"
    if standing.handled:
        return "handles an exception"
    if standing.cpu_share > BUSY_SHARE or standing.state == "R":
        return "endless loop"
    if loop_left(standing, ranks, others):
        return "ended early"
    return _kind_of_store(standing) or _KIND_OF_CALL.get(standing.system_call, "elsewhere")


def _kind_of_store(standing: RankStanding) -> str:
    """Of a rank that waits for others through the store that all share; else empty."""
    if standing.frame.endswith(_OF_NEW_GROUPS):
        return "new group"
    line = standing.places[0].code if standing.places else ""
    return "store" if _STORE_CALL.search(line) else ""


def _all_wait(waiting: Ranks, ranks: Ranks, groups: Groups) -> Cause:
    """Each waits for another: the one whose calls do not go on as before has left the program."""
    cause = _of_roots(waiting, ranks, groups)
    if cause is not None:
        return cause
    deviations = deviations_of(waiting)
    odd = _odd_one(waiting)
    if len(deviations) == 1:
        rank = next(iter(deviations))
    elif deviations and odd not in deviations:
        rank = first_to_deviate(deviations)
    elif odd is not None:
        rank = odd
    else:
        return unclear(waiting, ranks, groups)
    others = [other for other in waiting if other != rank]
    away = deviations.get(rank)
    if away is None:
        away = _against_others(waiting[rank], [waiting[other] for other in others])
    departure = departure_of(rank, away, ranks, others, groups)
    return Cause(
        kind=departure.kind,
        rank=rank,
        words=departure.words,
        site=departure.site or _site_of(away, waiting[rank]),
        waiting=waiting_words(others, ranks, groups),
        confidence=0.9 if away else 0.7,
    )


def _of_roots(waiting: Ranks, ranks: Ranks, groups: Groups) -> Cause | None:
    """The cause where ranks in one collective name different ranks as its root, and one of these is
    not in it or names another itself: whoever names that one is wrong.
    """
    for rank, standing in waiting.items():
        call, root = standing.pending, standing.root
        if call is None or root is None or root not in ranks:
            continue
        together = {
            other: ranks[other].root for other in waiting if _is_same_call(ranks[other], call)
        }
        right = {other for other, other_root in together.items() if other == other_root}
        if root in right or not right:
            continue
        others = [other for other in waiting if other != rank]
        wanted = rank_list(sorted(right))
        return Cause(
            kind="other source",
            rank=rank,
            words=f"rank {rank} calls {call_words(call, groups)} with rank {root} as its root, "
            f"and others with {wanted}",
            site=call.site or None,
            waiting=waiting_words(others, ranks, groups),
        )
    return None


def _is_same_call(standing: RankStanding, call: Call) -> bool:
    pending = standing.pending
    return pending is not None and (pending.group, pending.number, pending.name) == (
        call.group,
        call.number,
        call.name,
    )


def _site_of(away: Deviation | None, standing: RankStanding) -> str | None:
    """The line of the call that a rank waits in, else the line that it is in."""
    if away and away.call.site:
        return away.call.site
    return standing.places[0].spot if standing.places else None


def _odd_one(waiting: Ranks) -> int | None:
    """The rank whose pending call differs from that of all others; None for two ranks."""
    pending = {rank: _token(standing.pending) for rank, standing in waiting.items()}
    counts = Counter(pending.values())
    odd = [rank for rank, token in pending.items() if counts[token] == 1]
    return odd[0] if len(odd) == 1 and len(waiting) > 2 else None


def _token(call: Call | None) -> tuple[object, ...]:
    if call is None:
        return ()
    return (call.group, call.number, call.name, call.shapes, call.peer)


def _against_others(standing: RankStanding, standings: list[RankStanding]) -> Deviation | None:
    """What the rank does where all others do something else, at the same number of a group."""
    for other in standings:
        wanted = other.pending
        if wanted is None:
            continue
        here = [c for c in standing.calls if (c.group, c.number) == (wanted.group, wanted.number)]
        call = here[-1] if here else standing.pending
        if call is not None and (not here or not call.same_as(wanted)):
            return Deviation(call, wanted, call.key in {c.key for c in standing.calls[:-1]})
    return None
