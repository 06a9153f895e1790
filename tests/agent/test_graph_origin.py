"""Which node of a loss's graph was the first to hold what is not finite."""

import pytest
import torch
from torch import nn

from gputop_agent.runtime.session import session
from gputop_agent.watchers.graph_origin import Graph


@pytest.fixture(autouse=True)
def with_torch(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)


def test_a_nan_in_the_batch_is_no_relus():
    """The layer saves what went in, the ReLU only what it gave."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(4, 8)
    x[2, 3] = float("nan")
    origin = Graph(net(x).logsumexp(1).mean()).origin()
    assert origin.unowned is not None and origin.name == "addmm"


def test_an_infinite_factor_before_it_is_not_blamed_for_a_logarithm():
    """``where`` takes the infinities out again; the logarithm of 0 comes after."""
    weight = torch.ones(4, requires_grad=True)
    factor = torch.tensor([1.0, float("inf"), 1.0, 1.0])
    kept = torch.where(torch.isinf(factor), torch.zeros(4), weight * factor)
    origin = Graph((kept.log() * 1.0).mean()).origin()
    assert origin.name == "log"
