"""Asks ranks for flight recorders at times, where nothing cheaper tells who waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from gputop_probes.recorder.ranks import Rank, RankAssignment

_FIRST_S = 4.0
_FIRST_ASKS = 4
"""Requests that come in quick succession: one holds 200 collectives, a dozen steps of a sharded
model, and a dozen steps in a row are too few to tell a slow rank from a slow moment.
"""
_LATER_S = 60.0
_STEPS_BEFORE_ASKING = 20


_CALLED = 0.08
"""Part of a step in collectives of the script's own beside DDP's, from which on they are asked for:
a finding needs a tenth.
"""


class SkewWatch:
    """DDP tells its waits (COMM records). FSDP, DeepSpeed and bare collectives are asked."""

    def __init__(self, ranks: RankAssignment, send: Callable[[dict[str, Any]], int]):
        self._ranks = ranks
        self._send = send
        self._asked = 0
        self._next = time.monotonic() + _FIRST_S

    def check(self) -> None:
        """Send ``flight_recorder`` if due: four times in the first seconds, then once a minute."""
        now_s = time.monotonic()
        if now_s < self._next:
            return
        ranks = self._ranks.connected()
        if len(ranks) < 2 or (any(rank.comm_records for rank in ranks) and not _call(ranks)):
            return
        if min(rank.steps_seen for rank in ranks) < _STEPS_BEFORE_ASKING:
            return
        self._send({"cmd": "flight_recorder", "reason": ""})
        self._asked += 1
        self._next = now_s + (_FIRST_S if self._asked < _FIRST_ASKS else _LATER_S)


def _call(ranks: Sequence[Rank]) -> bool:
    """Whether each waits for a good part of its steps in collectives of the script's own."""
    return all(rank.called_ns > _CALLED * rank.wall_ns for rank in ranks)
