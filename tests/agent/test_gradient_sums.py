"""What counts as a sum of gradients that the ranks make themselves."""

import pytest
import torch
import torch.distributed as dist

from gputop_agent.runtime import session as sessions
from gputop_agent.timing import gradient_sums, replicas

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
    assert gradient_sums.sums.values == 0 and gradient_sums.sums.in_model


def test_a_step_has_its_own():
    gradient_sums.before_sum((torch.ones(5),), {})
    gradient_sums.on_boundary()
    assert (gradient_sums.sums.of_step, gradient_sums.sums.values) == (5, 0)
    gradient_sums.on_boundary()
    assert gradient_sums.sums.of_step == 0


@pytest.mark.parametrize(
    ("summed", "of_dense", "in_model", "exchange", "in_part"),
    [
        (4000, 4000, False, False, True),
        (4000, 4000, True, False, False),
        (4000, 4000, False, True, False),
        (10_000, 4000, False, False, False),
        (10, 4000, False, False, False),
        (4000, 400_000, False, False, False),
    ],
    ids=["part", "in the model", "exchanged", "all", "figures", "next to nothing"],
)
def test_parameters_that_a_sum_by_hand_leaves_out(
    monkeypatch, summed, of_dense, in_model, exchange, in_part
):
    monkeypatch.setattr(session, "exchange_seen", exchange)
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in (of_dense, 6000)]
    gradient_sums.sums.of_step, gradient_sums.sums.in_model = summed, in_model
    assert replicas._are_summed_in_part(parameters) is in_part


def test_the_line_of_one_of_the_first(monkeypatch):
    monkeypatch.setattr(session, "step", 3)
    gradient_sums.before_sum((torch.ones(5),), {})
    site = gradient_sums.sums.site
    assert site.rpartition(":")[0].endswith("test_gradient_sums.py")
    monkeypatch.setattr(session, "step", 300)
    gradient_sums.before_sum((torch.ones(5),), {})
    assert gradient_sums.sums.site == site
