"""When ranks are asked for their flight recorders."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gputop_probes.recorder import suspicion
from gputop_probes.recorder.suspicion import SkewWatch


def asked(monkeypatch, **fields: object) -> list[str]:
    """Commands sent to two ranks of these fields."""
    monkeypatch.setattr(suspicion, "_FIRST_S", 0.0)
    rank = {"steps_seen": 100, "comm_records": 0, "wall_ns": 10**10, "called_ns": 0}
    ranks = [SimpleNamespace(**{**rank, **fields}) for _ in range(2)]
    sent: list[str] = []

    def send(command: dict[str, object]) -> int:
        sent.append(str(command["cmd"]))
        return len(ranks)

    watch = SkewWatch(SimpleNamespace(connected=lambda: ranks), send)  # type: ignore[arg-type]
    watch.check()
    return sent


@pytest.mark.parametrize(
    ("fields", "is_asked"),
    [
        ({}, True),
        ({"comm_records": 50}, False),
        ({"comm_records": 50, "called_ns": 10**9}, True),
        ({"comm_records": 50, "called_ns": 10**8}, False),
        ({"steps_seen": 5}, False),
    ],
    ids=["no DDP", "DDP tells", "DDP and calls of its own", "few calls of its own", "too early"],
)
def test_ranks_are_asked_where_nothing_cheaper_tells(monkeypatch, fields, is_asked):
    assert asked(monkeypatch, **fields) == (["flight_recorder"] if is_asked else [])
