"""Notices that ranks stand still, and asks all of them where they are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from gputop_probes import procfs
from gputop_probes.recorder import blocked
from gputop_probes.recorder.journal import Journal
from gputop_probes.recorder.ranks import FIRST_STEPS, Rank, RankAssignment

DEFAULT_LIMIT_S = 30.0
LOOK_S = 8.0
"""Silence from which ranks that train together are asked once where they are. It is no suspicion:
what they answer is told where some wait for another.
"""
_LONGEST_STEPS = 3
"""Times the longest step that was, from which on a silence is worth that look."""
_MEDIANS = 20
_SECOND_DUMP_S = 60.0
_OWN_PAUSE_S = 5.0
_MOVES_EVERY_S = 6.0
"""A rank that works without a step says so every 2 s, on a busy machine a little later."""


class HangWatch:
    """Called about once a second."""

    def __init__(
        self,
        journal: Journal,
        ranks: RankAssignment,
        send: Callable[[dict[str, Any]], int],
        limit_s: float | None,
    ):
        self._journal = journal
        self._ranks = ranks
        self._send = send
        if limit_s is not None:
            self._limit_s = limit_s
        else:
            self._limit_s = _limit_from_environment()
        self._silent: list[Rank] = []
        self._has_looked = False
        self._second_dump_at: float | None = None
        self._last_check = time.monotonic()

    def check(self) -> None:
        """Compare ranks' silence with their limits; say once when a hang begins and is over."""
        now_s = time.monotonic()
        if now_s - self._last_check > _OWN_PAUSE_S:
            # we were stopped ourselves: nothing can be said of that time
            self._forgive(now_s)
        self._last_check = now_s
        if self._silent:
            self._follow(now_s)
            return
        silent = self._standing_still(now_s, self.limit_s)
        if not silent:
            self._look(now_s)
        elif not self._one_works(now_s):
            self._begin(silent, now_s)

    def _standing_still(self, now_s: float, limit_s: Callable[[Rank], float]) -> list[Rank]:
        silent = []
        for rank in self._ranks.connected():
            if self._stands_still(rank, now_s, limit_s(rank)):
                silent.append(rank)
        return silent

    def _look(self, now_s: float) -> None:
        """Ask once in a silence where the ranks are, long before it counts as a hang."""
        silent = self._standing_still(now_s, self.look_s)
        if not silent:
            self._has_looked = False
            return
        several = len(self._ranks.by_number) > 1
        if several and not self._has_looked and not self._one_works(now_s):
            self._has_looked = True
            self._journal.event("standing", **self._standing(silent, now_s, self.look_s))
            self._ask("standing")

    def look_s(self, rank: Rank) -> float:
        """Silence of this rank that is worth a look."""
        longest_s = max(rank.longest_s, rank.median_step_s())
        return max(LOOK_S, _LONGEST_STEPS * longest_s)

    def limit_s(self, rank: Rank) -> float:
        """Silence that counts as a hang of this rank."""
        return max(self._limit_s, _MEDIANS * rank.median_step_s())

    def _one_works(self, now_s: float) -> bool:
        """Whether a rank evaluates, saves or compiles: others may wait for it meanwhile."""
        return any(now_s - rank.moved_s < _MOVES_EVERY_S for rank in self._ranks.connected())

    def _stands_still(self, rank: Rank, now_s: float, limit_s: float) -> bool:
        if rank.said_goodbye or now_s - rank.progress_s <= limit_s:
            return False
        if rank.steps_seen < FIRST_STEPS and not self._has_been_left(rank):
            return False
        stat = procfs.stat(rank.pid)
        if stat is not None and stat.state in "Tt":
            # stopped by somebody, or under a debugger: no hang
            rank.progress_s = now_s
            return False
        return stat is not None

    def _has_been_left(self, rank: Rank) -> bool:
        """Whether a rank has ended that made no more steps: this one need not make any either."""
        steps = rank.steps_seen + 1  # the last one ends with the process
        others = self._ranks.by_number.values()
        return any(other.said_goodbye and other.steps_seen <= steps for other in others)

    def _begin(self, silent: list[Rank], now_s: float) -> None:
        self._silent = silent
        self._journal.event("hang_suspected", **self._standing(silent, now_s, self.limit_s))
        self._ask("hang")
        self._second_dump_at = now_s + _SECOND_DUMP_S

    def _standing(
        self, silent: list[Rank], now_s: float, limit_s: Callable[[Rank], float]
    ) -> dict[str, Any]:
        """Fields of an event about ranks that stand still."""
        threads = []
        for rank in self._ranks.connected():
            threads.append({"rank": rank.number, **blocked.describe(rank.pid, rank.tid)})
        return {
            "ranks": _numbers(silent),
            "silent_s": round(max(now_s - rank.progress_s for rank in silent), 1),
            "limit_s": round(min(limit_s(rank) for rank in silent), 1),
            "threads": threads,
        }

    def _follow(self, now_s: float) -> None:
        moving = []
        for rank in self._silent:
            if now_s - rank.progress_s < self.limit_s(rank):
                moving.append(rank)
        gone = [rank for rank in self._silent if not rank.connected]
        if moving or len(gone) == len(self._silent):
            self._journal.event(
                "hang_over", ranks=_numbers(self._silent), reason="steps" if moving else "gone"
            )
            self._silent = []
        elif self._second_dump_at is not None and now_s >= self._second_dump_at:
            self._second_dump_at = None
            self._ask("hang")

    def _ask(self, reason: str) -> None:
        self._send({"cmd": "dump", "reason": reason})
        self._send({"cmd": "flight_recorder", "reason": reason})

    def _forgive(self, now_s: float) -> None:
        for rank in self._ranks.connected():
            rank.progress_s = now_s


def _numbers(ranks: list[Rank]) -> list[int]:
    return sorted(rank.number for rank in ranks)


def _limit_from_environment() -> float:
    try:
        limit = float(os.environ.get("GPUTOP_HANG_S", ""))
    except ValueError:
        return DEFAULT_LIMIT_S
    if limit > 0:
        return limit
    return DEFAULT_LIMIT_S
