"""What a step is made of on every screen and in every report: its phases, and waiting for other
ranks as a part of its own.
"""

from __future__ import annotations

import math

from gputop_analysis.model import PhaseStats
from gputop_analysis.overview import RunSummary

WAIT = "wait"
LEAST_SHARE = 0.01
"""Of backward; less waiting than that is not told apart."""


def parts_of(summary: RunSummary) -> tuple[PhaseStats, ...]:
    """The phases in their order, the wait that DDP's timers found inside backward taken out of it
    and put after it.

    Quantiles of the two are NaN: the timers are read at some steps only.
    """
    wait_ms = summary.wait_in_backward_ms
    parts = []
    for phase in summary.phases:
        hidden_ms = 0.0
        if phase.name == "backward" and math.isfinite(wait_ms):
            hidden_ms = min(wait_ms, phase.mean_ms)
        if hidden_ms <= LEAST_SHARE * phase.mean_ms:
            parts.append(phase)
            continue
        wait_share = phase.share * hidden_ms / phase.mean_ms
        for name, mean_ms, share in (
            (phase.name, phase.mean_ms - hidden_ms, phase.share - wait_share),
            (WAIT, hidden_ms, wait_share),
        ):
            parts.append(PhaseStats(name, mean_ms, math.nan, math.nan, share))
    return tuple(parts)
