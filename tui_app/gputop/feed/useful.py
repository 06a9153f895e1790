"""How much of the time is useful compute: the budget's first line, read as its cost allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop.feed.clock import Clock
from gputop.feed.snapshot import Useful

if TYPE_CHECKING:
    from gputop_probes.record.reader import RunRecord

LEAST_PERIOD_S = 4.0
COST_SHARE = 0.01
"""Of a core, for this one figure."""


class UsefulReader:
    """Holds what was read last."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._last = Useful()
        self._next = float("-inf")

    def of(self, record: RunRecord, window_steps: int | None, at_once: bool = False) -> Useful:
        """The budget's useful compute and MFU over the window; ``at_once`` reads them whatever was
        read before.
        """
        began = self._clock.monotonic()
        if at_once or began >= self._next:
            self._last = useful(record, window_steps)
            cost_s = self._clock.monotonic() - began
            self._next = began + max(LEAST_PERIOD_S, cost_s / COST_SHARE)
        return self._last


def useful(record: RunRecord, window_steps: int | None) -> Useful:
    """The same figures as the budget screen's, over the same window."""
    from gputop_analysis.budget import budget
    from gputop_analysis.view import RunView

    lines = budget(RunView(record, window_steps))
    if not lines.wall_ns:
        return Useful()
    mfu = float("nan") if lines.mfu is None else lines.mfu
    return Useful(lines.share("useful_compute"), mfu, lines.share("core_wait"))
