"""Asks ranks for their flight recorders now and then, where nothing cheaper tells who waits for whom."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gputop_probes.recorder.ranks import RankTable

_LOOK_S = 10.0
_SHARDED_PERIOD_S = 60.0
_STEPS_BEFORE_ASKING = 20


class SkewWatch:
    """DDP tells its waits by itself (COMM records). FSDP, DeepSpeed and bare collectives have to be asked."""

    def __init__(self, ranks: RankTable, send: Callable[[dict[str, Any]], int]):
        self._ranks = ranks
        self._send = send
        self._next = time.monotonic() + _LOOK_S

    def check(self) -> None:
        """Send ``flight_recorder`` if it is due: first after ten seconds, then once a minute."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK_S
        ranks = self._ranks.connected()
        if len(ranks) < 2 or any(rank.comm_records for rank in ranks):
            return
        if min(rank.steps_seen for rank in ranks) < _STEPS_BEFORE_ASKING:
            return
        self._send({"cmd": "flight_recorder"})
        self._next = now + _SHARDED_PERIOD_S
