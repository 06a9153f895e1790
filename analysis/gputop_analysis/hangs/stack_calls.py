"""Collectives that ranks stand in by their stacks alone: gloo keeps no record of calls in torch 2.7
and before, so that neither numbers nor what went before are known.
"""

from __future__ import annotations

import re
from typing import Any

from gputop_analysis.hangs.call_order import Call
from gputop_analysis.hangs.departures import group_words, inner_loop_left, loop_left, loop_of
from gputop_analysis.hangs.standing import Cause, Groups, Ranks
from gputop_analysis.text import ranks_do

UNNUMBERED = -1
_COLLECTIVE = re.compile(
    r"^torch/distributed/distributed_c10d\.py:\d+ "
    r"(all_reduce|all_gather\w*|all_to_all\w*|barrier|broadcast|gather|reduce\w*|scatter)$"
)


def call_of_stack(dump: dict[str, Any]) -> Call | None:
    """The collective that the training thread of a ``stack_dump`` event waits in; None: in none
    that takes all ranks.
    """
    threads, places = dump.get("threads") or [{}], dump.get("places") or [{}]
    matches = map(_COLLECTIVE.match, map(str, threads[0].get("frames") or ()))
    match = next((match for match in matches if match), None)
    if match is None:
        return None
    place = f"{places[0].get('site') or ''} {places[0].get('function') or ''}"
    return Call("0", UNNUMBERED, match[1], site=place.strip(), done=False)


def are_from_stacks(waiting: Ranks) -> bool:
    """Whether nothing but their stacks tells what ranks wait in."""
    calls = [standing.pending for standing in waiting.values()]
    return all(call is not None and call.number == UNNUMBERED for call in calls)


def judge_stacks(waiting: Ranks, ranks: Ranks, groups: Groups) -> Cause | None:
    """The cause where ranks wait at different lines; None where all stand at one line."""
    by_line: dict[str, list[int]] = {}
    for rank, standing in waiting.items():
        by_line.setdefault(_words(standing.pending, groups), []).append(rank)
    if len(by_line) < 2:
        return None
    for there in by_line.values():
        others = [rank for rank in waiting if rank not in there]
        standing = ranks[there[0]]
        loop = loop_left(standing, ranks, others)
        loop = loop or loop_of(inner_loop_left(standing, ranks, others))
        if loop and len(there) == 1:
            return Cause(
                kind="ended early",
                rank=there[0],
                words=f"rank {there[0]} is past the loop at {loop} that the others are in, after "
                f"{standing.step:,} steps",
                site=loop,
                waiting=_waiting(by_line),
                confidence=0.7,
            )
    fewest = min(by_line.values(), key=len)
    odd = fewest[0] if len(fewest) == 1 and len(waiting) > 2 else None
    return Cause(
        kind="different collectives",
        rank=odd,
        words="ranks wait in different collectives",
        waiting=_waiting(by_line),
        confidence=0.7,
    )


def _words(call: Call | None, groups: Groups) -> str:
    if call is None:
        return "no collective"
    return f"{call.name} of {group_words(call, groups)} ({call.site.partition(' ')[0]})"


def _waiting(by_line: dict[str, list[int]]) -> str:
    """``rank 0 waits in all_reduce of the default group (train.py:40)``."""
    most_first = sorted(by_line.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{ranks_do(there, 'wait')} in {words}" for words, there in most_first[:4])
