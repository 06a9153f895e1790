"""The lines at which a user's function gives a schedule its factor."""

import functools

import pytest
import torch
from torch.optim import lr_scheduler

from gputop_agent.watchers.looks import built_places, rate_functions


def warmed(step, warm=10):
    if step < warm:
        return (step + 1) / warm
    return max(0.0, 1 - step / 100)


class Plan:
    def share(self, step):
        return 0.5**step


class Halving(lr_scheduler.LRScheduler):
    def get_lr(self):
        return [rate / 2 for rate in self.base_lrs]


@pytest.fixture
def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


def _line(function, offset):
    """As the agent says it, of a line so far below the function's first."""
    return f"{__file__.rpartition('/')[2]}:{function.__code__.co_firstlineno + offset}"


def _returns(scheduler):
    return [site.rpartition("/")[2] for site in rate_functions.returns_of(scheduler)]


@pytest.mark.parametrize("function", [warmed, functools.partial(warmed, warm=5)])
def test_each_return_of_a_function_in_their_order(optimizer, function):
    schedule = lr_scheduler.LambdaLR(optimizer, function)
    assert _returns(schedule) == [_line(warmed, 2), _line(warmed, 3)]


def test_a_method_and_a_schedule_of_the_users_own(optimizer):
    assert _returns(lr_scheduler.LambdaLR(optimizer, Plan().share)) == [_line(Plan.share, 1)]
    assert _returns(Halving(optimizer)) == [_line(Halving.get_lr, 1)]


def test_none_where_a_package_works_the_rate_out_or_two_functions_do(optimizer):
    transformers = pytest.importorskip("transformers")
    assert _returns(lr_scheduler.StepLR(optimizer, 3)) == []
    assert _returns(lr_scheduler.ReduceLROnPlateau(optimizer)) == []
    assert _returns(transformers.get_linear_schedule_with_warmup(optimizer, 1, 9)) == []
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    assert _returns(lr_scheduler.LambdaLR(optimizer, [warmed, Plan().share])) == []


def test_they_are_known_after_the_schedule_is_gone(optimizer):
    schedule = lr_scheduler.LambdaLR(optimizer, warmed)
    built_places._schedulers.put(schedule, ["train.py:9 main"])
    lines = built_places.returns_of_schedule(optimizer)
    assert len(lines) == 2
    del schedule
    assert built_places.returns_of_schedule(optimizer) == lines
