"""Collectives that ranks stand in by their stacks alone, where there is no record of calls (gloo of
torch 2.7): neither their numbers nor what went before are known.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gputop_analysis.hangs.call_order import UNNUMBERED, Call
from gputop_analysis.hangs.departures import inner_loop_left, loop_left, loop_of
from gputop_analysis.hangs.standing import Cause, Groups, Ranks
from gputop_analysis.hangs.who_waits import unclear, waiting_words

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
    ranks_by_call: dict[object, list[int]] = {}
    for rank, standing in waiting.items():
        ranks_by_call.setdefault(standing.calls[-1].key, []).append(rank)
    if len(ranks_by_call) < 2:
        return None
    alone = [together[0] for together in ranks_by_call.values() if len(together) == 1]
    for rank in alone:
        others = [other for other in waiting if other != rank]
        loop = loop_left(ranks[rank], ranks, others)
        loop = loop or loop_of(inner_loop_left(ranks[rank], ranks, others))
        if loop:
            return Cause(
                kind="ended early",
                rank=rank,
                words=f"rank {rank} is past the loop at {loop} that the others are in, after "
                f"{ranks[rank].step:,} steps",
                site=loop,
                waiting=waiting_words(list(waiting), ranks, groups),
                confidence=0.7,
            )
    odd = alone[0] if len(alone) == 1 and len(waiting) > 2 else None
    return replace(unclear(waiting, ranks, groups), rank=odd)
