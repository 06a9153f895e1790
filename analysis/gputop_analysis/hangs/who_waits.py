"""Which ranks wait in which calls, in words, and the cause where no more can be said."""

from __future__ import annotations

from gputop_analysis.hangs.call_order import UNNUMBERED
from gputop_analysis.hangs.departures import at_line, call_words, group_words
from gputop_analysis.hangs.standing import Cause, Groups, Ranks
from gputop_analysis.text import ranks_do


def unclear(waiting: Ranks, ranks: Ranks, groups: Groups) -> Cause:
    """They wait in different calls, and none of them can be called wrong."""
    return Cause(
        kind="different collectives",
        rank=None,
        words="ranks wait in different collectives",
        waiting=waiting_words(list(waiting), ranks, groups),
        confidence=0.7,
    )


def waiting_words(others: list[int], ranks: Ranks, groups: Groups) -> str:
    """Who waits in which call: ``ranks 0-7 but 5 wait in all_reduce of the dp group``."""
    waiting_by_call: dict[str, list[int]] = {}
    for rank in others:
        call = ranks[rank].pending
        if call is None:
            continue
        if call.peer is not None:
            words = call_words(call, groups)
        else:
            site = ranks[rank].places[0].site if ranks[rank].places else ""
            number = f" number {call.number}" if call.number != UNNUMBERED else ""
            words = f"{call.name}{number} of {group_words(call, groups)}{at_line(site)}"
        waiting_by_call.setdefault(words, []).append(rank)
    most_first = sorted(waiting_by_call.items(), key=lambda item: -len(item[1]))
    return "; ".join(f"{ranks_do(waiting, 'wait')} in {words}" for words, waiting in most_first[:4])
