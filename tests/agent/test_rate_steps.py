"""How often a schedule is stepped, and by which lines."""

import pytest
import torch

from gputop_agent.runtime.session import session
from gputop_agent.watchers.looks import rate_steps


@pytest.fixture
def schedule(monkeypatch):
    """An optimizer and its schedule; the guest counts from step 1 on."""
    rate_steps.reset()
    monkeypatch.setattr(session, "step", 1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    yield optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    rate_steps.reset()


def stepped(schedule, updates, times):
    for _ in range(updates):
        for _ in range(times):
            rate_steps.before((schedule,), {})
        session.step += 1
    session.step -= 1


@pytest.mark.parametrize(("times", "told"), [(1, None), (2, 2.0), (4, 4.0)])
def test_a_schedule_goes_on_once_an_update(schedule, times, told):
    optimizer, rate = schedule
    stepped(rate, 30, times)
    assert rate_steps.of(optimizer).get("rate_steps") == told


def test_few_calls_and_other_optimizers_say_nothing(schedule):
    optimizer, rate = schedule
    stepped(rate, 5, 2)
    assert rate_steps.of(optimizer) == {}
    stepped(rate, 30, 2)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    assert rate_steps.of(other) == {} and rate_steps.of(optimizer)


def test_a_schedule_of_a_trainers_wrapper_is_that_of_the_optimizer_in_it(schedule):
    optimizer, rate = schedule

    class Wrapped(torch.optim.Optimizer):
        def __init__(self, inner):
            self.optimizer, self.param_groups = inner, inner.param_groups

    rate.optimizer = Wrapped(optimizer)
    stepped(rate, 30, 2)
    assert rate_steps.of(optimizer)["rate_steps"] == 2.0


def test_the_constructor_takes_no_step(schedule, monkeypatch):
    _, rate = schedule
    monkeypatch.setattr(rate, "_step_count", 0)
    rate_steps.before((rate,), {})
    assert rate_steps._schedules.get(rate) is None


def test_lines_that_call_it_themselves_come_first(schedule):
    optimizer, rate = schedule
    stepped(rate, 30, 2)
    calls = rate_steps._schedules.get(rate)
    assert calls is not None
    calls.lines.clear()
    calls.lines.update({("train.py:9", False): 30, ("train.py:44", True): 30})
    assert rate_steps.of(optimizer)["rate_stepped_at"] == ["train.py:44", "train.py:9"]


@pytest.mark.parametrize(("updates", "told"), [(60, {}), (120, "OneCycleLR"), (39, {})])
def test_one_cycle_is_made_for_each_update(monkeypatch, updates, told):
    rate_steps.reset()
    monkeypatch.setattr(session, "step", 1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=600)
    for _ in range(2):
        optimizer.step()
        rate_steps.before((cycle,), {})
        cycle.step()
    session.step = updates
    fields = rate_steps.of(optimizer)
    assert fields.get("rate_rarely", {}) == told
    if told:
        assert fields["rate_stepped"] == 2 and fields["rate_length"] == 600
    rate_steps.reset()


def test_one_cycle_that_goes_on_with_each_update(monkeypatch):
    monkeypatch.setattr(session, "step", 120)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=600)
    for _ in range(120):
        optimizer.step()
        cycle.step()
    rate_steps.before((cycle,), {})
    assert rate_steps.of(optimizer) == {}
