"""Who holds up ranks whose collectives are queued on a device, as NCCL's are.

A process goes on while its collectives wait, so that it may have called many that have not ended:
the first of them is not where its program stands. What tells is how far each member of a group has
come. A rank holds up the rest where others wait for it and it waits for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gputop_analysis.hangs.call_order import Call

_QUEUED = ("nccl", "xccl", "hccl")
_EVEN = ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
"""Collectives whose input has the same size on all ranks."""

Calls = Mapping[int, Iterable[Call]]
"""Of each rank, in order of time."""
Members = Mapping[str, frozenset[int]]
"""Ranks of each group."""


class CallDifference(NamedTuple):
    """Ranks that call something else at the same number of a group."""

    calls: dict[int, Call]
    """One of each rank that came to it."""
    odd: tuple[int, ...]
    """Those that are fewer; empty where neither side can be called wrong."""
    by_size: bool
    """The operation is the same, and its sizes differ."""


def each(calls: Calls) -> Iterator[tuple[int, Call]]:
    """Each call with its rank."""
    for rank, rank_calls in calls.items():
        for call in rank_calls:
            yield rank, call


def is_queued(calls: Calls) -> bool:
    """Whether these are calls of a library that queues them on a device."""
    backends = {call.operation.partition(":")[0] for _, call in each(calls)}
    return not backends.isdisjoint(_QUEUED)


def holding_up(calls: Calls, members: Members) -> dict[int, list[tuple[int, Call]]]:
    """The ranks that hold up others, with (rank, call) of those that wait for them."""
    reached = _reached(calls)
    awaited: dict[int, list[tuple[int, Call]]] = {}
    waiting: set[int] = set()
    for rank, call in each(calls):
        for absent in _absent(rank, call, members, reached):
            if absent in calls:
                awaited.setdefault(absent, []).append((rank, call))
                waiting.add(rank)
    return {rank: awaited[rank] for rank in sorted(awaited) if rank not in waiting}


def _reached(calls: Calls) -> dict[tuple[str, int], int]:
    """The newest collective of each group on each rank, ended or not."""
    numbers: dict[tuple[str, int], int] = {}
    for rank, call in each(calls):
        if call.peer is None:
            key = call.group, rank
            numbers[key] = max(numbers.get(key, -1), call.number)
    return numbers


def _absent(
    rank: int, call: Call, members: Members, reached: Mapping[tuple[str, int], int]
) -> Iterator[int]:
    """Members that have not come to a collective which has not ended."""
    if call.done or call.peer is not None:
        return
    for member in members.get(call.group, ()):
        if member != rank and reached.get((call.group, member), -1) < call.number:
            yield member


def first_difference(calls: Calls) -> CallDifference | None:
    """The earliest collective that has not ended and that ranks of one group call differently."""
    at_number: dict[tuple[str, int], dict[int, list[Call]]] = {}
    for rank, call in each(calls):
        if call.peer is None:
            here = at_number.setdefault((call.group, call.number), {})
            here.setdefault(rank, []).append(call)
    differences = []
    for by_rank in at_number.values():
        single = {rank: called[0] for rank, called in by_rank.items() if len(called) == 1}
        # several of one number are a coalesced group, whose calls the ring may have cut
        if len(single) == len(by_rank) > 1 and (difference := _difference(single)):
            differences.append(difference)
    return min(differences, key=_began, default=None)


def _began(difference: CallDifference) -> int:
    return min(call.at_ns for call in difference.calls.values())


def _difference(calls: dict[int, Call]) -> CallDifference | None:
    if all(call.done for call in calls.values()):
        return None
    names = {rank: call.name for rank, call in calls.items()}
    if len(set(names.values())) > 1:
        return CallDifference(calls, _fewer(names), by_size=False)
    shapes = {rank: call.shapes for rank, call in calls.items() if call.name in _EVEN}
    if len(set(shapes.values())) > 1:
        return CallDifference(calls, _fewer(shapes), by_size=True)
    return None


def _fewer(values: Mapping[int, str]) -> tuple[int, ...]:
    """Ranks whose value is not the one that most have; none where most have no single one."""
    counts = Counter(values.values()).most_common()
    if 2 * counts[0][1] <= len(values):
        return ()
    return tuple(sorted(rank for rank, value in values.items() if value != counts[0][0]))
