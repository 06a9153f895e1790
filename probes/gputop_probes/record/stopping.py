"""Who stopped a run, if anybody. Standard library only: ``gputop runs`` answers at once."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gputop_probes.record import files, layout, schema
from gputop_probes.record.fields import Tally

Event = dict[str, Any]

WENT_ON_NS = 60 * 10**9
"""A training that steps for longer than this after a signal did not end by it."""
PEOPLE = {
    "user": "you",
    "client": "you",
    "calibrate": "gputop run --calibrate",
    "dryrun": "gputop dryrun",
}
_NOT_A_STOP = ("recorder",)
"""What the recorder ends is what a stopped command left behind."""
_TAIL_BYTES = 256 << 10


def first_stop(interrupts: Iterable[Event], last_step_ns: int) -> Event | None:
    """The first ``interrupt`` event that the training did not outlive, or None."""
    for event in sorted(interrupts, key=lambda e: e.get("t_ns", 0)):
        if (
            event.get("by") not in _NOT_A_STOP
            and last_step_ns < int(event.get("t_ns", 0)) + WENT_ON_NS
        ):
            return event
    return None


def stopped_by(stop: Event) -> str:
    """``you``, ``gputop dryrun``, or the signal that came from outside: ``SIGTERM``."""
    return PEOPLE.get(str(stop.get("by"))) or _signal_name(stop.get("signal"))


def last_interrupts(host_dir: Path) -> list[Event]:
    """The ``interrupt`` events at the end of a host's event file; none where it cannot be read."""
    try:
        lines = files.read_tail(host_dir / layout.EVENTS_FILE, _TAIL_BYTES).splitlines()
    except OSError:
        return []
    events = [_event(line) for line in lines if b'"interrupt"' in line]
    return [event for event in events if event is not None and event["type"] == "interrupt"]


def _event(line: bytes) -> Event | None:
    try:
        value = files.parse_json(line)
    except ValueError:
        return None
    return schema.event(value, Tally()) if isinstance(value, dict) else None


def _signal_name(number: object) -> str:
    try:
        return signal.Signals(number).name  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return f"signal {number}"
