"""What counts as a sum of gradients that the ranks make themselves."""

import pytest
import torch
import torch.distributed as dist

from gputop_agent.runtime import session as sessions
from gputop_agent.timing import gradient_sums

session = sessions.session


@pytest.fixture(autouse=True)
def training(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(session, "phase", sessions.OTHER)
    gradient_sums.reset()
    yield
    gradient_sums.reset()


@pytest.mark.parametrize(
    ("args", "kwargs", "values"),
    [
        ((torch.ones(3, 4),), {}, 12),
        ((), {"tensor": torch.ones(5), "op": dist.ReduceOp.AVG}, 5),
        ((torch.ones(5), dist.ReduceOp.MAX), {}, 0),
        ((torch.ones(5),), {"group": object()}, 0),
        ((torch.ones(5), dist.ReduceOp.SUM, object()), {}, 0),
        (([torch.ones(5)],), {}, 0),
    ],
)
def test_values_that_all_ranks_sum(args, kwargs, values):
    gradient_sums.before_sum(args, kwargs)
    assert gradient_sums.sums.values == values
    assert gradient_sums.sums.are_made is (values > 0)


@pytest.mark.parametrize("phase", [sessions.FORWARD, sessions.BACKWARD])
def test_activations_of_tensor_parallelism_are_none(phase, monkeypatch):
    monkeypatch.setattr(session, "phase", phase)
    gradient_sums.before_sum((torch.ones(5),), {})
    assert gradient_sums.sums.values == 0


def test_a_step_has_its_own():
    gradient_sums.before_sum((torch.ones(5),), {})
    gradient_sums.on_boundary()
    assert (gradient_sums.sums.of_step, gradient_sums.sums.values) == (5, 0)
    gradient_sums.on_boundary()
    assert gradient_sums.sums.of_step == 0
