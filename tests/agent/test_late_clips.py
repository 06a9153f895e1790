"""Gradients that are clipped after their update has used them."""

import pytest

from gputop_agent.hooks import clip
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step


@pytest.mark.parametrize(
    ("step", "pending", "backwards", "grads", "optimizers", "is_late"),
    [
        (9, True, 1, 0, 1, True),  # after the update of the step
        (9, False, 0, 0, 1, True),  # after the next forward, before its backward
        (9, False, 1, 0, 1, False),  # between backward and update
        (9, False, 0, 2, 1, False),  # gradients that the script makes itself
        (0, False, 0, 0, 1, False),  # before the first backward there is nothing to be late for
        (9, True, 1, 0, 2, False),  # the other optimizer's gradients may be meant
    ],
)
def test_when_a_clip_is_late(monkeypatch, step, pending, backwards, grads, optimizers, is_late):
    monkeypatch.setattr(session, "step", step)
    monkeypatch.setattr(session, "optimizers", dict.fromkeys(range(optimizers)))
    monkeypatch.setattr(open_step, "pending", pending)
    monkeypatch.setattr(open_step, "backwards", backwards)
    monkeypatch.setattr(open_step, "grads", grads)
    assert clip._is_late() is is_late
