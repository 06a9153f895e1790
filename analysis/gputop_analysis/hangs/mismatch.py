"""Who left the program where native code ended a rank that received another rank's call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from gputop_analysis.hangs.call_order import Call
from gputop_analysis.hangs.departures import (
    call_words,
    departure_of,
    deviations_of,
    first_to_deviate,
)
from gputop_analysis.hangs.standing import Cause, Groups, Ranks
from gputop_analysis.text import rank_list


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
    deviations = deviations_of(failed)
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
    rank = first_to_deviate(deviations)
    departure = departure_of(rank, deviations[rank], failed, [], groups)
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
        missed = call_words(calls[-1], groups)
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
    return any(size == width * part_count for part_count in counts for width in (1, 2, 4, 8))
