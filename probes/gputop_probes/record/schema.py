"""What the JSON of a record holds: events by their contracts, and the fields of ``run.json`` and
``host.json``.

Analysis reads nothing that has not passed through here, so it never meets a wrong type. Standard
library only.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gputop_agent import contracts
from gputop_agent.contracts.kinds import LATEST_NS, Pid, Rank, Time, Whole
from gputop_probes.record import layout, recorder_events
from gputop_probes.record.derive import check_of, checks_of, needed
from gputop_probes.record.fields import (
    DROP,
    KINDS,
    Check,
    Tally,
    amount,
    between,
    count,
    exactly,
    line,
    many,
    mapping,
    named,
    one_of,
    record,
    scalar,
)

_TIME = check_of(Time)
_COUNTED = check_of(Whole)
EVENTS = {**contracts.EVENTS, **recorder_events.EVENTS}
"""The fields of each type of event that this version knows."""
KNOWN = frozenset(EVENTS)


@cache
def _check(kind: str) -> Check:
    """The check of an event's type; of an unknown one it is that of the fields which all have."""
    shared = recorder_events.EveryEvent
    if kind not in KNOWN:
        return record(checks_of(shared), needed(shared))
    contract = EVENTS[kind]
    return record(
        {**checks_of(shared), **checks_of(contract)}, (*needed(shared), *needed(contract))
    )


def event(value: dict[str, Any], tally: Tally) -> dict[str, Any] | None:
    """An event with known fields of the right types; None for one that may not stay."""
    event_type = value.get("type")
    check = _check(event_type if isinstance(event_type, str) and event_type in KNOWN else "")
    checked = check(value, tally)
    return None if checked is DROP else checked


_COLUMNS = many(many(line, 2), 1_000)
_MANIFEST = record(
    {
        **named("gputop_version:line run_id:line name:line cwd:line recording:line"),
        "format": exactly(layout.FORMAT),
        "version": between(0, 10**6),
        "command": KINDS["lines"],
        "created_ns": _TIME,
        "tables": mapping(_COLUMNS),
    }
)
_GPU = record(
    {
        **named("name:line uuid:line ours:flag power_limit_default_w:amount added:flag"),
        "index": between(0, 4096),
        "rank": check_of(Rank),
        "memory_total_bytes": between(-1, 2**50),
    },
    ("index",),
)
_CONTEXT = record(
    {
        **named("command:lines cwd:line container:line"),
        **{name: mapping(scalar) for name in ("git", "slurm", "kubernetes", "ray", "environment")},
        "host": record(
            {
                **named("kernel:line machine:line cpu_model:line"),
                "cpu_count_machine": between(0, 2**20),
            }
        ),
    }
)
_STATE = record(
    {
        **named(
            "host:line socket:line boot_id:line gpu_note:text output_note:text run_id:line "
            "transport:line pty:flag"
        ),
        "state": exactly("starting", "running", "ended", "lost"),
        **dict.fromkeys(("recorder_pid", "command_pid", "command_pgid"), check_of(Pid)),
        "started_ns": one_of(_TIME, between(0, 0)),
        "ended_ns": _TIME,
        "exit_code": between(-256, 256),
        "signal": between(0, 128),
        "clock_offset_ns": between(-LATEST_NS, LATEST_NS),
        "command_start_ticks": count,
        "cpu_count": between(0, 2**20),
        "memory_total_bytes": between(-1, 2**50),
        "gpus": many(_GPU),
        "context": _CONTEXT,
        "dropped_records": _COUNTED,
        "write_errors": _COUNTED,
        "hang_s": amount,
        "output_losses": record(dict.fromkeys(("missing", "given_up", "not_passed_on"), count)),
    }
)


def manifest(value: dict[str, Any], tally: Tally) -> dict[str, Any]:
    """``run.json`` with known fields of the right types."""
    checked = _MANIFEST(value, tally)
    return {} if checked is DROP else checked


def host_state(value: dict[str, Any], tally: Tally) -> dict[str, Any]:
    """``host.json`` with known fields of the right types."""
    checked = _STATE(value, tally)
    return {} if checked is DROP else checked
