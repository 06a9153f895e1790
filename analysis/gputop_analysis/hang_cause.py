"""Who holds up a training of several ranks, and what that rank did: from stacks, the last collectives
of each rank by group, messages between ranks, and what ``/proc`` tells.

Ranks wait for the members of a group that have not come to a collective, and for the peer of a
message. Followed to its end, that leads to a rank that waits for nobody: what it does is the kind.
Where all wait, one has left its program: its calls do not go on as they went before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gputop_analysis.call_order import Call, Deviation, deviation
from gputop_analysis.queued_calls import Calls, first_difference, holding_up, is_queued
from gputop_analysis.text import rank_list, ranks_do

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
_LOOPS = ("for", "while")
_KIND_OF_CALL = {
    "sleep": "sleeps",
    "pause": "sleeps",
    "futex": "lock",
    "lock a file": "lock",
    "read": "reads",
    "recv": "reads",
    "poll": "reads",
    "select": "reads",
    "accept": "reads",
    "connect": "reads",
    "open": "opens",
    "write": "writes",
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
_BACKWARD = ".backward("


class ThreadPlace(NamedTuple):
    """A line of the user's that a thread is in."""

    site: str
    function: str
    blocks: tuple[str, ...] = ()
    """Branches and loops around it, the innermost last: ``205 for``."""
    code: str = ""

    @property
    def file(self) -> str:
        """``train.py``."""
        return self.site.rpartition(":")[0]

    @property
    def spot(self) -> str:
        """``train.py:211 main``."""
        return f"{self.site} {self.function}"


@dataclass(frozen=True, slots=True)
class RankStanding:
    """What is known of one rank."""

    calls: tuple[Call, ...] = ()
    """In order of time."""
    places: tuple[ThreadPlace, ...] = ()
    """Innermost first."""
    frame: str = ""
    """Innermost of any code."""
    handled: str = ""
    """``OSError: stale file handle, train.py:40``: the exception whose handler it is in."""
    state: str = ""
    """Of its thread, a letter of ``/proc``."""
    system_call: str = ""
    path: str = ""
    cpu_share: float = 0.0
    """Of a core."""
    phase: str = ""
    step: int = -1
    answered: bool = True
    root: int | None = None
    """The rank that its collective takes from or gives to."""
    left: str = ""
    """``died``, ``ended early`` or ``raised``; empty: it is there."""
    left_ns: int = 0
    left_words: str = ""

    @property
    def pending(self) -> Call | None:
        """The oldest call that has not ended; None where the thread does not wait in one."""
        running = next((call for call in self.calls if not call.done), None)
        if running is None or running.operation.startswith("nccl"):
            return running
        line = self.places[0].code if self.places else ""
        inside = self.frame.startswith("torch/") or ".wait(" in line or not self.frame
        return running if inside else None

    @property
    def is_in_distributed(self) -> bool:
        """Whether its thread stands in Python code of torch's that waits for other ranks."""
        return self.frame.startswith("torch/distributed/")


UNNAMED = "undefined"
"""What torch says of a group that ``new_group`` got no description for."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group."""

    description: str
    ranks: frozenset[int]

    @property
    def words(self) -> str:
        """``dp group``, ``the default group``, ``group metrics``."""
        name = self.description
        if name in ("", "default_pg"):
            return "the default group"
        if name.startswith("mesh_"):
            return f"the {name.removeprefix('mesh_')} group"
        return f"group {name}" if name != UNNAMED else "a group without a name"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why nobody goes on."""

    kind: str
    rank: int | None
    """None where two differ and neither can be called wrong."""
    words: str
    """One sentence."""
    site: str | None = None
    waiting: str = ""
    """``ranks 0-7 but 5 wait in all_reduce number 31 of the dp group (train.py:40)``."""
    confidence: float = 0.9


Ranks = Mapping[int, RankStanding]
Groups = Mapping[str, Group]


def judge(ranks: Ranks, groups: Groups) -> Cause | None:
    """The cause; None where nobody waits for anybody."""
    awaited = _awaited(ranks, groups)
    idle = [rank for rank, standing in ranks.items() if standing.left or standing.pending is None]
    roots = [rank for rank in idle if awaited[rank] or ranks[rank].left or len(idle) == 1]
    if roots:
        return of_one_outside(_worst(roots, ranks, awaited), ranks, groups)
    waiting = {rank: standing for rank, standing in ranks.items() if standing.pending is not None}
    outside = [rank for rank in idle if not ranks[rank].is_in_distributed]
    if len(outside) == 1 and len(idle) > 1 and ranks[outside[0]].answered:
        return of_one_outside(outside[0], ranks, groups)
    if len(waiting) < 2:
        return None
    calls = {rank: standing.calls for rank, standing in waiting.items()}
    if is_queued(calls):
        return _all_queued(calls, ranks, groups)
    return _all_wait(waiting, ranks, groups)


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
        return _unclear({rank: ranks[rank] for rank in calls}, ranks, groups)
    rank = difference.odd[0]
    call = difference.calls[rank]
    others = [other for other in calls if other != rank]
    usual = next(other for key, other in difference.calls.items() if key != rank)
    return Cause(
        kind="other size" if difference.by_size else "other operation",
        rank=rank,
        words=f"rank {rank} calls {_call_words(call, groups)} where the others call "
        f"{_call_words(usual, groups)}",
        site=call.site or None,
        waiting=_waiting_words(others, ranks, groups),
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
        waiting=_waiting_words(waiting, ranks, groups),
    )


def _outside_words(rank: int, kind: str, site: str | None, ranks: Ranks, waiting: list[int]) -> str:
    standing = ranks[rank]
    if kind == "ended early":
        words = f"rank {rank} ended its training after {standing.step:,} steps, the others go on"
        loop = _loop_left(standing, ranks, waiting)
        return f"{words}: it has left the loop at {loop}" if loop else words
    if kind == "handles an exception":
        return f"rank {rank} is stuck at {site} as it handles {standing.handled}"
    words = f"rank {rank} {_WORDS.get(kind, kind)}"
    if site:
        words = f"rank {rank} is stuck at {site}: it {_WORDS.get(kind, kind)}"
    if kind in ("died", "raised") and standing.left_words:
        return f"{words} ({standing.left_words})"
    if kind in ("reads", "writes", "storage") and standing.path:
        return f"{words}: {standing.path}"
    return words


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
    if _loop_left(standing, ranks, others):
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
    deviations = _deviations(waiting)
    odd = _odd_one(waiting)
    if len(deviations) == 1:
        rank = next(iter(deviations))
    elif deviations and odd not in deviations:
        rank = _first_to_deviate(deviations)
    elif odd is not None:
        rank = odd
    else:
        return _unclear(waiting, ranks, groups)
    others = [other for other in waiting if other != rank]
    away = deviations.get(rank)
    if away is None:
        away = _against_others(waiting[rank], [waiting[other] for other in others])
    departure = _departure(rank, away, ranks, others, groups)
    return Cause(
        kind=departure.kind,
        rank=rank,
        words=departure.words,
        site=departure.site or _site_of(away, waiting[rank]),
        waiting=_waiting_words(others, ranks, groups),
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
            words=f"rank {rank} calls {_call_words(call, groups)} with rank {root} as its root, "
            f"and others with {wanted}",
            site=call.site or None,
            waiting=_waiting_words(others, ranks, groups),
        )
    return None


def _is_same_call(standing: RankStanding, call: Call) -> bool:
    pending = standing.pending
    return pending is not None and (pending.group, pending.number, pending.name) == (
        call.group,
        call.number,
        call.name,
    )


def _deviations(ranks: Ranks) -> dict[int, Deviation]:
    """Ranks whose calls do not go on as before, and where."""
    made = Counter(_made(call) for standing in ranks.values() for call in set(standing.calls))
    tellers = sum(bool(standing.calls) for standing in ranks.values())
    deviations = {}
    for rank, standing in ranks.items():
        away = deviation(standing.calls, lambda call: 1 < tellers == made[_made(call)])
        if away:
            deviations[rank] = away
    return deviations


def _made(call: Call) -> tuple[object, ...]:
    """What is the same of a collective on all ranks that make it; of a message its time, which no
    other rank has.
    """
    alone = call.at_ns if call.peer is not None else None
    return call.group, call.number, call.name, call.site, call.shapes, alone


def _first_to_deviate(deviations: Mapping[int, Deviation]) -> int:
    return min(deviations, key=lambda rank: deviations[rank].call.at_ns)


def _site_of(away: Deviation | None, standing: RankStanding) -> str | None:
    """The line of the call that a rank waits in, else the line that it is in."""
    if away and away.call.site:
        return away.call.site
    return standing.places[0].spot if standing.places else None


def of_a_mismatch(failed: Ranks, gone: int, sizes: tuple[int, int], groups: Groups) -> Cause:
    """The cause where native code ended a rank that received another size than it waited for, and
    others then failed to reach it: the first rank that had left its program, else the one that is
    gone or one of those that told no calls.

    Args:
        failed: the others, with their calls up to the one that failed.
        gone: the rank that received.
        sizes: what it received and what it waited for, bytes.
        groups: process groups by name.
    """
    received, expected = sizes
    met = f"rank {gone} ended of it: it received {received:,} bytes and waited for {expected:,}"
    deviations = _deviations(failed)
    if not deviations:
        rank, words = _who_is_left(failed, gone, sizes, groups)
        kind = "different collectives"
        if rank == gone:
            kind, words = _left_by_the_gone(failed, gone, sizes, groups) or (kind, words)
        return Cause(
            kind=kind,
            rank=rank,
            words=words,
            waiting=met,
            confidence=0.7,
        )
    rank = _first_to_deviate(deviations)
    departure = _departure(rank, deviations[rank], failed, [], groups)
    others = [other for other in failed if other != rank]
    if others:
        met += f"; {rank_list(others)} could then not reach it"
    return Cause(
        kind=departure.kind,
        rank=rank,
        words=departure.words,
        site=departure.site or None,
        waiting=met,
    )


def _who_is_left(
    failed: Ranks, gone: int, sizes: tuple[int, int], groups: Groups
) -> tuple[int | None, str]:
    """Who left the program where those that told their calls did not, and what is known of it.

    A rank that was in the call that the one gone waited in clears it, one in the call that it
    received blames it; ranks that were ended before they told anything stay in question.
    """
    received, expected = sizes
    last = {rank: standing.calls[-1] for rank, standing in failed.items() if standing.calls}
    members: set[int] = set()
    for call in last.values():
        members |= groups[call.group].ranks if call.group in groups else set()
    silent = sorted(members - last.keys() - {gone})
    clear = sorted(rank for rank, call in last.items() if _has_bytes(call, expected, groups))
    others_send = any(_has_bytes(call, received, groups) for call in last.values())
    if not silent or (others_send and not clear):
        return gone, f"rank {gone} left the order of collectives that the others kept to"
    suspects = silent if clear else sorted([*silent, gone])
    if len(suspects) == 1:
        (rank,) = suspects
        return rank, f"rank {rank} left the order of collectives that the others kept to"
    return None, f"one of {rank_list(suspects)} left the order of collectives, and told no calls"


def _left_by_the_gone(
    failed: Ranks, gone: int, sizes: tuple[int, int], groups: Groups
) -> tuple[str, str] | None:
    """What the rank that ended did instead of the call that the others then failed in, as kind and
    words: by the size of what it waited for. None where that tells nothing.
    """
    received, expected = sizes
    for standing in failed.values():
        calls = standing.calls
        if not calls or not _has_bytes(calls[-1], received, groups):
            continue
        missed = _call_words(calls[-1], groups)
        if any(_has_bytes(call, expected, groups) for call in _followers(calls)):
            words = f"rank {gone} skipped {missed}, or called what follows it once more"
            return "skipped", words
        if not any(_has_bytes(call, expected, groups) for call in calls):
            words = (
                f"rank {gone} waited for {expected:,} bytes in {missed}, of {received:,} on others"
            )
            return "other size", words
    return None


def _followers(calls: Sequence[Call]) -> list[Call]:
    """What came after earlier calls like the last."""
    return [
        following
        for call, following in pairwise(calls)
        if call.key == calls[-1].key and following.key != call.key
    ]


def _has_bytes(call: Call, size: int, groups: Groups) -> bool:
    """Whether a call may send so many bytes at a time, by its sizes and any width of a number: all,
    or a segment of an all_reduce, which gloo sends in two for each rank.
    """
    count = 1
    for part in re.findall(r"\d{1,9}", call.shapes.partition(",")[0]):
        count *= int(part)
    counts = [count]
    if call.name == "all_reduce" and call.group in groups:
        counts.append(-(-count // (2 * max(1, len(groups[call.group].ranks)))))
    return any(size == width * count_ for count_ in counts for width in (1, 2, 4, 8))


def _unclear(waiting: Ranks, ranks: Ranks, groups: Groups) -> Cause:
    return Cause(
        kind="different collectives",
        rank=None,
        words="ranks wait in different collectives",
        waiting=_waiting_words(list(waiting), ranks, groups),
        confidence=0.7,
    )


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


class _Departure(NamedTuple):
    """How a rank that waits in another call than it should left its program."""

    kind: str
    words: str
    """One sentence."""
    site: str = ""
    """Empty where it is the line of the call."""


def _departure(
    rank: int, away: Deviation | None, ranks: Ranks, others: list[int], groups: Groups
) -> _Departure:
    if away is None:
        return _Departure("different collectives", f"rank {rank} waits in another collective")
    call, usual = away.call, away.usual
    did, missed = _call_words(call, groups), _call_words(usual, groups)
    loop = _loop_left(ranks[rank], ranks, others)
    if loop:
        words = (
            f"rank {rank} has left the loop at {loop} after {ranks[rank].step:,} steps, and the "
            f"others go on: it waits in {did}"
        )
        return _Departure("ended early", words, loop)
    if call.peer is not None and call.same_as(usual) and not away.seen_before:
        words = (
            f"rank {rank} waits in {did}, which its earlier steps did not have: no call meets it"
        )
        return _Departure("message missing", words)
    if usual.peer is not None:
        words = f"rank {rank} left out {missed} and waits in {did}"
        return _Departure("message missing", words, usual.site)
    same_line = bool(call.site) and call.site == usual.site
    if call.same_as(usual) and (same_line or not away.seen_before):
        words = (
            f"rank {rank} calls {call.name} of [{call.shapes}] where it was of [{usual.shapes}] "
            f"before{_at(call.site)}"
        )
        return _Departure("other size", words)
    other_group = call.group != usual.group
    # a call that it makes elsewhere too: what lies between was left out, unless one line made both
    if away.seen_before and not (other_group and same_line):
        if away.is_early:
            return _gone_ahead(rank, did, missed)
        is_of_backward = any(
            place.code.find(_BACKWARD) >= 0
            for other in others
            for place in ranks[other].places
            if usual.site.startswith(place.site)
        )
        block = _block_left(rank, usual, ranks, others)
        return _skipped(rank, usual, missed, block, is_of_backward=is_of_backward)
    if other_group:
        return _Departure("other order", f"rank {rank} calls {did} before {missed}")
    return _Departure("other operation", f"rank {rank} calls {did} instead of {missed}")


def _gone_ahead(rank: int, did: str, missed: str) -> _Departure:
    words = (
        f"rank {rank} skipped {missed} in an earlier pass of its loop, as by a continue: it is ahead "
        f"of the others in {did}"
    )
    return _Departure("skipped", words)


def _skipped(
    rank: int, usual: Call, missed: str, block: str, *, is_of_backward: bool
) -> _Departure:
    """How a rank left out a call.

    Args:
        rank: that left it out.
        usual: the call.
        missed: its words.
        block: the branch around it that others are in, ``train.py:211 if``; or empty.
        is_of_backward: a backward makes it, which may also run without (``no_sync``).
    """
    line, _, kind = block.rpartition(" ")
    words = f"rank {rank} skipped {missed}"
    if kind == "try":
        words += f": it left the try at {line}, by an exception that was caught"
        return _Departure("swallowed an exception", words, line)
    if is_of_backward:
        words += ": no backward there, or one that does not reduce, under no_sync or by a branch"
        return _Departure("skipped", words, usual.site)
    if line:
        words += f": it took the other branch at {line}"
    return _Departure("skipped", words, line or usual.site)


def _call_words(call: Call, groups: Groups) -> str:
    """``all_reduce of the dp group (train.py:40)``."""
    if call.peer is not None:
        direction = "to" if call.name == "send" else "from"
        return f"{call.name} {direction} rank {call.peer}{_at(call.site)}"
    sizes = "" if call.site or not call.shapes else f" [{call.shapes}]"
    return f"{call.name}{sizes} of {_group_words(call, groups)}{_at(call.site)}"


def _group_words(call: Call, groups: Groups) -> str:
    return groups[call.group].words if call.group in groups else f"group {call.group}"


def _at(site: str) -> str:
    return f" ({site.partition(' ')[0]})" if site else ""


def _waiting_words(others: list[int], ranks: Ranks, groups: Groups) -> str:
    """Who waits in which call: ``ranks 0-7 but 5 wait in all_reduce of the dp group``."""
    waiting_by_call: dict[str, list[int]] = {}
    for rank in others:
        call = ranks[rank].pending
        if call is None:
            continue
        if call.peer is not None:
            words = _call_words(call, groups)
        else:
            site = ranks[rank].places[0].site if ranks[rank].places else ""
            words = f"{call.name} number {call.number} of {_group_words(call, groups)}{_at(site)}"
        waiting_by_call.setdefault(words, []).append(rank)
    most_first = sorted(waiting_by_call.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{ranks_do(waiting, 'wait')} in {words}" for words, waiting in most_first[:4])


def _common(standing: RankStanding, other: RankStanding) -> tuple[ThreadPlace, ThreadPlace] | None:
    """The deepest function that both are in by the same calls, as each is in it."""
    common = None
    for place, theirs in zip(reversed(standing.places), reversed(other.places), strict=False):
        if (place.file, place.function) != (theirs.file, theirs.function):
            break
        common = place, theirs
        if place.site != theirs.site:
            break
    return common


def _loop_left(standing: RankStanding, ranks: Ranks, others: list[int]) -> str:
    """The loop that others are in and this rank has left behind, ``train.py:30``; else empty."""
    for other in others:
        pair = _common(standing, ranks[other])
        if pair is None:
            continue
        own_place, theirs = pair
        loops = [block for block in theirs.blocks if block.endswith(_LOOPS)]
        missing = [block for block in loops if block not in own_place.blocks]
        if missing and _line(own_place.site) > int(missing[0].partition(" ")[0]):
            return f"{theirs.file}:{missing[0].partition(' ')[0]}"
    return ""


def _block_left(rank: int, usual: Call, ranks: Ranks, others: list[int]) -> str:
    """The branch around a call that others are in and this rank is not: ``train.py:211 if``."""
    for other in others:
        standing = ranks[other]
        pending = standing.pending
        if pending is None or pending.name != usual.name or pending.group != usual.group:
            continue
        pair = _common(ranks[rank], standing)
        if pair is None:
            continue
        own_place, theirs = pair
        away = [block for block in theirs.blocks if block not in own_place.blocks]
        if away:
            return f"{theirs.file}:{away[-1]}"
        inner = standing.places[: standing.places.index(theirs)]
        for block_ in inner:
            if block_.blocks:
                return f"{block_.file}:{block_.blocks[-1]}"
    return ""


def _line(site: str) -> int:
    number = site.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
