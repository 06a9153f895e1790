"""How a run ended: by itself, stopped by its user or by a signal from outside, or failed."""

from __future__ import annotations

import signal
from typing import Any

from gputop_analysis.overview import Ending
from gputop_probes.record.reader import RunRecord
from gputop_probes.record.stopping import PEOPLE, first_stop, stopped_by

Event = dict[str, Any]


def stopping_event(record: RunRecord) -> Event | None:
    """The first ``interrupt`` event that the training did not outlive, or None."""
    return first_stop(
        record.events("interrupt"), max((int(rows[-1]) for rows in _step_ends(record)), default=0)
    )


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


def ended_well(record: RunRecord) -> bool:
    """Whether the command is known to have ended with 0 on each host."""
    codes = [host.state.exit_code for host in record.hosts.values()]
    return bool(codes) and all(code == 0 for code in codes)


def _stopped(stop: Event) -> Ending:
    stopper = stopped_by(stop)
    if str(stop.get("by")) in PEOPLE:
        why = f" ({stop['why']})" if stop.get("why") else ""
        return Ending("stopped", f"stopped by {stopper}{why}")
    return Ending("terminated", f"stopped by {stopper}")


def _step_ends(record: RunRecord) -> list[Any]:
    ends = (record.steps(rank)["t_end_ns"] for rank in record.ranks())
    return [times for times in ends if len(times)]
