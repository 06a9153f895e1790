"""How a run ended: by itself, stopped by its user or by a signal from outside, or failed."""

from __future__ import annotations

import signal
from typing import Any

from gputop_analysis.overview import Ending
from gputop_probes.record.reader import RunRecord

Event = dict[str, Any]

WENT_ON_NS = 60 * 10**9
"""A training that steps for longer than this after a signal did not end by it."""
_WHO = {"user": "you", "client": "you", "calibrate": "gputop run --calibrate", "dryrun": "gputop dryrun"}
_NOT_A_STOP = ("recorder",)
"""What the recorder ends is what a stopped command left behind."""


def stopping_event(record: RunRecord) -> Event | None:
    """The first ``interrupt`` event that the training did not outlive, or None."""
    last_step = max((int(rows[-1]) for rows in _step_ends(record)), default=0)
    for event in sorted(record.events("interrupt"), key=lambda e: e.get("t_ns", 0)):
        if event.get("by") not in _NOT_A_STOP and last_step < int(event.get("t_ns", 0)) + WENT_ON_NS:
            return event
    return None


def ending(record: RunRecord, state: str, exit_code: int | None) -> Ending:
    """How the run ended, in words.

    Args:
        record: of the run.
        state: as in ``RunSummary.state``.
        exit_code: of the command; None while it runs, or where nobody learnt it.
    """
    if state == "lost":
        return Ending("lost", "recorder lost")
    if state != "ended":
        return Ending("running", state)
    stop = stopping_event(record)
    if stop is not None:
        return _stopped(stop)
    if exit_code is None:
        return Ending("unknown", "ended, exit code unknown")
    if exit_code == 0:
        return Ending("finished", "ended, exit 0")
    if exit_code == 128 + signal.SIGTERM:
        return Ending("terminated", "ended by SIGTERM")
    return Ending("failed", f"ended, exit {exit_code}")


def _stopped(stop: Event) -> Ending:
    who = _WHO.get(str(stop.get("by")))
    if who is not None:
        why = f" ({stop['why']})" if stop.get("why") else ""
        return Ending("stopped", f"stopped by {who}{why}")
    return Ending("terminated", f"stopped by {_signal_name(stop.get('signal'))}")


def _signal_name(number: object) -> str:
    try:
        return signal.Signals(number).name  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return f"signal {number}"


def _step_ends(record: RunRecord) -> list[Any]:
    ends = (record.steps(rank)["t_end_ns"] for rank in record.ranks())
    return [times for times in ends if len(times)]
