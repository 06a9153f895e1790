"""What a step is made of on every screen and in every report: its phases, and the time in which a
rank waits in communication, for the other ranks or for the network, as one part.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gputop_agent import wire
from gputop_analysis.model import PhaseStats
from gputop_analysis.overview import RunSummary

WAIT = "wait"
CALLED = "comm"
"""The phase of collectives that are called from Python: waiting, all of it."""
OWN_PHASES = tuple(phase for phase in wire.PHASES if phase != CALLED)
"""A rank's own work, backward with what it waits there."""
LEAST_SHARE = 0.01
"""Of backward; less waiting than that is not told apart."""


def parts_of(summary: RunSummary) -> tuple[PhaseStats, ...]:
    """The phases in their order; after backward the wait, which is what DDP's timers found inside
    backward, taken out of it, and the collectives called from Python.

    Quantiles of what the timers have a part in are NaN: they are read at some steps only.
    """
    hidden_ms = _hidden_ms(summary)
    wait = PhaseStats(WAIT, 0.0, 0.0, 0.0, 0.0)
    parts: list[PhaseStats] = []
    for phase in summary.phases:
        if phase.name == CALLED:
            wait = _longer(replace(phase, name=WAIT), wait.mean_ms, wait.share)
        elif phase.name == "backward" and hidden_ms:
            hidden_share = phase.share * hidden_ms / phase.mean_ms
            wait = _longer(wait, hidden_ms, hidden_share)
            parts.append(_longer(phase, -hidden_ms, -hidden_share))
        else:
            parts.append(phase)
    if wait.mean_ms > 0:
        names = [part.name for part in parts]
        after_backward = names.index("backward") + 1 if "backward" in names else len(names)
        parts.insert(after_backward, wait)
    return tuple(parts)


def _hidden_ms(summary: RunSummary) -> float:
    """The wait inside backward, a step; 0 where none is measured, or next to none."""
    backward_ms = sum(phase.mean_ms for phase in summary.phases if phase.name == "backward")
    hidden_ms = min(summary.wait_in_backward_ms, backward_ms)
    if not math.isfinite(hidden_ms) or hidden_ms <= LEAST_SHARE * backward_ms:
        return 0.0
    return hidden_ms


def _longer(phase: PhaseStats, more_ms: float, more_share: float) -> PhaseStats:
    """The phase with so much more mean time and share, whose quantiles nobody knows then."""
    if not more_ms:
        return phase
    return PhaseStats(
        phase.name, phase.mean_ms + more_ms, math.nan, math.nan, phase.share + more_share
    )
