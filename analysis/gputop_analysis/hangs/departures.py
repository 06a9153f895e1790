"""How a rank left the program that the others went on with: its calls do not go on as before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gputop_analysis.hangs.call_order import Call, Deviation, deviation
from gputop_analysis.hangs.standing import Groups, Ranks, RankStanding, ThreadPlace

_LOOPS = ("for", "while")
_BRANCHES = ("else", "elif", "except", "case")
_BACKWARD = ".backward("


def deviations_of(ranks: Ranks) -> dict[int, Deviation]:
    """Ranks whose calls do not go on as before, and where."""
    makers = Counter(_made(call) for standing in ranks.values() for call in set(standing.calls))
    tellers = sum(bool(standing.calls) for standing in ranks.values())
    deviations = {}
    for rank, standing in ranks.items():
        away = deviation(standing.calls, lambda call: 1 < tellers == makers[_made(call)])
        if away:
            deviations[rank] = away
    return deviations


def _made(call: Call) -> tuple[object, ...]:
    """What is the same of a collective on all ranks that make it; of a message its time, which no
    other rank has.
    """
    alone = call.at_ns if call.peer is not None else None
    return call.group, call.number, call.name, call.site, call.shapes, alone


def first_to_deviate(deviations: Mapping[int, Deviation]) -> int:
    """By time; at one call of one group it is the rank whose operation is another than usual."""
    first = min(deviations, key=lambda rank: deviations[rank].call.at_ns)
    there = deviations[first].call
    at_that_call = [
        rank
        for rank, away in deviations.items()
        if (away.call.group, away.call.number) == (there.group, there.number)
    ]
    return min(at_that_call, key=lambda rank: _how_other(deviations[rank]))


def _how_other(away: Deviation) -> tuple[bool, int]:
    return away.call.same_as(away.usual), away.call.at_ns


class _Departure(NamedTuple):
    """How a rank that waits in another call than it should left its program."""

    kind: str
    words: str
    """One sentence."""
    site: str = ""
    """Empty where it is the line of the call."""


def departure_of(
    rank: int, away: Deviation | None, ranks: Ranks, others: list[int], groups: Groups
) -> _Departure:
    if away is None:
        return _Departure("different collectives", f"rank {rank} waits in another collective")
    call, usual = away.call, away.usual
    did, missed = call_words(call, groups), call_words(usual, groups)
    loop = loop_left(ranks[rank], ranks, others) or _loop_returned_from(ranks[rank], ranks, others)
    if loop:
        words = (
            f"rank {rank} has left the loop at {loop} after {ranks[rank].step:,} steps, and the "
            f"others go on: it waits in {did}"
        )
        return _Departure("ended early", words, loop)
    head = _loop_begun_again(ranks[rank], ranks, others)
    if head and not _is_left_to_a_branch(away, ranks, others):
        words = (
            f"rank {rank} asks for a batch at {head}, in {call.name}, while the others are still "
            "at one: it has fewer, or left one out"
        )
        return _Departure("ended early", words, head)
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
            f"before{at_line(call.site)}"
        )
        return _Departure("other size", words)
    other_group = call.group != usual.group
    # a call that it makes elsewhere too: what lies between was left out, unless one line made both
    if away.seen_before and not (other_group and same_line):
        if away.is_early:
            return _gone_ahead(rank, did, missed)
        block = _block_left(rank, usual, ranks, others)
        is_of_backward = _is_of_backward(usual, ranks, others)
        return _skipped(rank, usual, missed, block, is_of_backward=is_of_backward)
    if not other_group and _makes_fewer(rank, usual, ranks, others):
        words = (
            f"rank {rank} makes {usual.name}{at_line(usual.site)} less often in a row than the "
            f"others: it is in {call.name}{at_line(call.site)} already"
        )
        return _Departure("other operation", words, usual.site)
    if not other_group:
        return _Departure("other operation", f"rank {rank} calls {did} instead of {missed}")
    return _of_another_group(rank, away, ranks, others, words=(did, missed))


def _makes_fewer(rank: int, usual: Call, ranks: Ranks, others: list[int]) -> bool:
    """Whether the call before the rank's last one was made at the line of the usual one, where
    another rank is: a loop there goes round less often than on that one.
    """
    before = [call.site for call in ranks[rank].calls[-2:-1]]
    still_there = [call.site for other in others for call in ranks[other].calls[-1:]]
    return bool(usual.site) and usual.site in before and usual.site in still_there


def _of_another_group(
    rank: int, away: Deviation, ranks: Ranks, others: list[int], *, words: tuple[str, str]
) -> _Departure:
    """How a rank left that waits in another group than its earlier steps would.

    Args:
        rank: of it.
        away: its call, and what was usual.
        ranks: all of them.
        others: those that wait for it.
        words: of the call, and of the usual one.
    """
    did, missed = words
    if _has_passed(rank, away.usual, ranks, others):
        return _skipped(rank, away.usual, missed, block="", is_of_backward=False)
    if not away.seen_before and _is_behind(rank, ranks, others):
        return _Departure("other operation", f"rank {rank} alone calls {did}, before {missed}")
    return _Departure("other order", f"rank {rank} calls {did} before {missed}")


def _is_of_backward(usual: Call, ranks: Ranks, others: list[int]) -> bool:
    """Whether others make that call at a line that calls a backward."""
    places = (place for other in others for place in ranks[other].places)
    return any(_BACKWARD in place.code for place in places if usual.site.startswith(place.site))


def _gone_ahead(rank: int, did: str, missed: str) -> _Departure:
    words = (
        f"rank {rank} skipped {missed} in an earlier pass of its "
        f"loop, as by a continue: it is ahead of the others in {did}"
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


def call_words(call: Call, groups: Groups) -> str:
    """``all_reduce of the dp group (train.py:40)``."""
    if call.peer is not None:
        direction = "to" if call.name == "send" else "from"
        return f"{call.name} {direction} rank {call.peer}{at_line(call.site)}"
    sizes = "" if call.site or not call.shapes else f" [{call.shapes}]"
    return f"{call.name}{sizes} of {group_words(call, groups)}{at_line(call.site)}"


def group_words(call: Call, groups: Groups) -> str:
    return groups[call.group].words if call.group in groups else f"group {call.group}"


def at_line(site: str) -> str:
    return f" ({site.partition(' ')[0]})" if site else ""


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


def loop_left(standing: RankStanding, ranks: Ranks, others: list[int]) -> str:
    """The loop that others are in and this rank has left behind, ``train.py:30``; else empty."""
    for other in others:
        pair = _common(standing, ranks[other])
        if pair is None:
            continue
        own_place, theirs = pair
        missing = [line for line in _loops(theirs) if line not in _loops(own_place)]
        if missing and _line(own_place.site) > missing[0]:
            return f"{theirs.file}:{missing[0]}"
    return ""


def inner_loop_left(standing: RankStanding, ranks: Ranks, others: list[int]) -> ThreadPlace | None:
    """Where others are in the loop of a function that this rank is past: it is further down in the
    caller, and took no other branch there; else None. They may as well have gone round once more.
    """
    for other in others:
        pair = _common(standing, ranks[other])
        if pair is None or _line(pair[0].site) <= _line(pair[1].site):
            continue
        own_place, theirs = pair
        if _branches(block for block in theirs.blocks if block not in own_place.blocks):
            continue
        their_places = ranks[other].places
        inside = their_places[: their_places.index(theirs)]
        in_loops = [place for place in inside if _loops(place)]
        if in_loops:
            return in_loops[0]
    return None


def loop_of(place: ThreadPlace | None) -> str:
    """The outermost loop that a place is in, ``train.py:30``; empty for None."""
    return f"{place.file}:{_loops(place)[0]}" if place else ""


def _loop_returned_from(standing: RankStanding, ranks: Ranks, others: list[int]) -> str:
    """The loop of ``inner_loop_left`` where the rank's call before was made in its function: it has
    been in there, and did not leave the function out.
    """
    place = inner_loop_left(standing, ranks, others)
    before = [call.site.rpartition(" ")[2] for call in standing.calls[-2:-1]]
    return loop_of(place) if place is not None and place.function in before else ""


def _loop_begun_again(standing: RankStanding, ranks: Ranks, others: list[int]) -> str:
    """The loop that others are in and at whose first line this rank waits, where it asks for its
    first batch or the next one: ``train.py:30``; else empty.
    """
    for other in others:
        pair = _common(standing, ranks[other])
        if pair is None or pair[0].site == pair[1].site:
            continue
        own_place, theirs = pair
        loops = _loops(theirs)
        if loops and _line(own_place.site) == loops[-1]:
            return f"{theirs.file}:{loops[-1]}"
    return ""


def _is_left_to_a_branch(away: Deviation, ranks: Ranks, others: list[int]) -> bool:
    """Whether the others wait in the usual call of another group, which a branch alone makes: who
    is at its next batch already has taken the other way there.
    """
    call, usual = away.call, away.usual
    if call.group == usual.group or _is_of_backward(usual, ranks, others):
        return False
    there = [
        place for standing in _waiting_in(usual, ranks, others) for place in standing.places[:1]
    ]
    return any(block.endswith(("if", *_BRANCHES)) for place in there for block in place.blocks)


def _loops(place: ThreadPlace) -> list[int]:
    """First lines of the loops that a place is in, the outermost first."""
    return [int(block.partition(" ")[0]) for block in place.blocks if block.endswith(_LOOPS)]


def _has_passed(rank: int, usual: Call, ranks: Ranks, others: list[int]) -> bool:
    """Whether the rank stands further down than one that waits in a call, in the function that both
    are in, and in no other branch there: it went past the call's line without making it.
    """
    for standing in _waiting_in(usual, ranks, others):
        if standing.step > ranks[rank].step:
            continue  # it has gone past that line, too, and is in the next pass of the loop
        pair = _common(ranks[rank], standing)
        if pair is not None and _line(pair[0].site) > _line(pair[1].site):
            return not any(block.endswith(_BRANCHES) for block in pair[0].blocks)
    return False


def _waiting_in(usual: Call, ranks: Ranks, others: list[int]) -> list[RankStanding]:
    """Those of the others that wait in such a call."""
    waiting = []
    for other in others:
        pending = ranks[other].pending
        if pending is not None and (pending.name, pending.group) == (usual.name, usual.group):
            waiting.append(ranks[other])
    return waiting


def _is_behind(rank: int, ranks: Ranks, others: list[int]) -> bool:
    """Whether all others have come to a later step."""
    return all(ranks[other].step > ranks[rank].step for other in others)


def _block_left(rank: int, usual: Call, ranks: Ranks, others: list[int]) -> str:
    """The branch around a call that others are in and this rank is not: ``train.py:211 if``."""
    for standing in _waiting_in(usual, ranks, others):
        pair = _common(ranks[rank], standing)
        if pair is None:
            continue
        own_place, theirs = pair
        away = _branches(block for block in theirs.blocks if block not in own_place.blocks)
        if away:
            return f"{theirs.file}:{away[-1]}"
        for place in standing.places[: standing.places.index(theirs)]:
            inner = _branches(place.blocks)
            if inner:
                return f"{place.file}:{inner[-1]}"
    return ""


def _branches(blocks: Iterable[str]) -> list[str]:
    """Those that are no loops: a loop is left, and not taken instead of another."""
    return [block for block in blocks if not block.endswith(_LOOPS)]


def _line(site: str) -> int:
    number = site.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
