"""Looks are frequent again where a script begins to train with another optimizer."""

import pytest

from gputop_agent.timing import events
from gputop_agent.watchers.looks import checkup


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(checkup, "current", checkup.Checkup())
    monkeypatch.setattr(events, "found_optimizers", {1: 0})


def test_an_optimizer_of_the_first_steps_is_no_stage():
    events.found_optimizers[2] = 15
    checkup._note_stage(30)
    assert (checkup.current.stages, checkup.current.next_step) == (0, 20)


def test_a_later_one_is_looked_at_soon():
    events.found_optimizers[2] = 300
    checkup.current.next_step = 600
    checkup._note_stage(310)
    assert (checkup.current.stages, checkup.current.next_step) == (1, 320)
    checkup._note_stage(320)
    assert checkup.current.stages == 1


def test_one_that_is_made_anew_for_each_update_is_no_reason_for_ever():
    for step in range(300, 3000, 100):
        events.found_optimizers[step] = step
        checkup._note_stage(step)
    assert checkup.current.stages == checkup.MAX_STAGES
