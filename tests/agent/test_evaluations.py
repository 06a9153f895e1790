"""Which of two networks an evaluation asks in which mode."""

import weakref

import pytest
import torch

from gputop_agent.runtime.session import session
from gputop_agent.timing.evaluations import Modes


class Net(torch.nn.Sequential):
    """A class of the script's own."""


@pytest.fixture
def trained(monkeypatch):
    net = Net(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    monkeypatch.setattr(session, "roots", [weakref.ref(net)])
    return net


def asked(other, steps, monkeypatch):
    modes = Modes()
    for step in steps:
        monkeypatch.setattr(session, "step", step)
        modes.other_begins(other)
    return modes.copy_steps


def test_a_copy_in_training_mode_counts_where_the_trained_one_is_in_eval_mode(trained, monkeypatch):
    trained.eval()
    assert asked(Net(), [10, 10, 20], monkeypatch) == 2


def test_a_teacher_beside_a_student_that_trains_does_not_count(trained, monkeypatch):
    assert trained.training
    assert asked(Net(), [10, 20], monkeypatch) == 0


def test_a_network_of_another_class_does_not_count(trained, monkeypatch):
    trained.eval()
    assert asked(torch.nn.Linear(2, 2), [10, 20], monkeypatch) == 0
