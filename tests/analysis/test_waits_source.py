"""Which measure of waiting is judged where a run has several."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gputop_analysis import waits
from gputop_analysis.waits import ARRIVALS, COLLECTIVES, Waits

RANKS = (0, 1)


@pytest.mark.parametrize(
    ("steps", "apart_ms", "source"),
    [(12, 15.0, COLLECTIVES), (12, 3.0, ARRIVALS), (100, 15.0, ARRIVALS)],
    ids=["few arrivals, far apart", "few, as by a broadcast", "arrivals of many steps"],
)
def test_a_few_arrivals_give_way_to_ranks_that_part_far_in_collectives(
    monkeypatch, steps, apart_ms, source
):
    called = Waits(np.tile([5.0 + apart_ms, 5.0], (200, 1)), RANKS, COLLECTIVES)
    arrivals = Waits(np.tile([4.0, 3.0], (steps, 1)), RANKS, ARRIVALS)
    common = SimpleNamespace(per_step_ms=lambda _column: np.full((200, 2), 50.0))
    view = SimpleNamespace(common=SteadySteps(common))
    monkeypatch.setattr(waits, "_from_ddp", lambda *_: None)
    monkeypatch.setattr(waits, "_from_arrivals", lambda *_: arrivals)
    monkeypatch.setattr(waits, "in_collectives", lambda *_: called)

    assert waits.waits.__wrapped__(view).source == source


@pytest.mark.parametrize(
    ("called_ms", "source"),
    [((6.0, 6.2), COLLECTIVES), ((2.0, 6.2), ARRIVALS), ((0.1, 0.1), ARRIVALS)],
    ids=["ranks are in calls as long", "the one that waits is longer", "calls do not hold waits"],
)
def test_arrivals_that_the_time_in_calls_contradicts(monkeypatch, called_ms, source):
    called = Waits(np.tile(called_ms, (200, 1)), RANKS, COLLECTIVES)
    arrivals = Waits(np.tile([1.0, 5.0], (150, 1)), RANKS, ARRIVALS)
    common = SimpleNamespace(per_step_ms=lambda _column: np.full((200, 2), 50.0))
    view = SimpleNamespace(common=SteadySteps(common))
    monkeypatch.setattr(waits, "_from_ddp", lambda *_: None)
    monkeypatch.setattr(waits, "_from_arrivals", lambda *_: arrivals)
    monkeypatch.setattr(waits, "in_collectives", lambda *_: called)

    assert waits.waits.__wrapped__(view).source == source


class SteadySteps:
    """Two hundred common steps."""

    def __init__(self, common):
        self.per_step_ms = common.per_step_ms

    def __len__(self):
        return 200
