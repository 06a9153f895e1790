"""Of several optimizers: the rate is that of the largest, and one that comes later is told of."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import eager, each_kind, torch
from torch import nn
kind = each_kind.fork()
nets = [nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(3)]
opts = [torch.optim.Adam(net.parameters(), 1e-3) for net in nets]
warmth = nn.Parameter(torch.zeros(()))
of_warmth = torch.optim.SGD([warmth], 0.05)
def train(net, *opts):
    for step in range(60):
        x = torch.randn(16, 8)
        for opt in opts: opt.zero_grad()
        (net(x) * warmth.exp() - x).square().mean().backward()
        for opt in opts: opt.step()
        opts[0].param_groups[0]["lr"] *= 0.9
if kind == "folds":
    for net, opt in zip(nets, opts): train(net, opt)
elif kind == "trials":
    del nets, opts, of_warmth
    for _ in range(3):
        net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
        train(net, torch.optim.Adam(net.parameters(), 1e-3))
else:
    train(nets[0], opts[0], of_warmth)
"""
KINDS = ["folds", "trials", "together"]


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the kind."""
    script = tmp_path_factory.mktemp("two") / "loops.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), *KINDS], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    return outcome.by_kind(KINDS)


@pytest.mark.parametrize("kind", ["folds", "trials"])
def test_each_training_but_the_first_begins_with_another_optimizer(guests, kind):
    begun = guests[kind].of_type("optimizer_begins")
    assert [(event["optimizer"], event["step"]) for event in begun] == [("Adam", 60), ("Adam", 120)]


def test_the_rate_is_that_of_the_optimizer_with_most_values(guests):
    rates = [record["lr"] for record in guests["together"].steps if record["lr"] == record["lr"]]
    assert rates[-1] < 1e-5
    assert max(rates) < 0.01


def test_optimizers_of_one_step_begin_together(guests):
    begun = guests["together"].of_type("optimizer_begins")
    assert all(event["step"] == 0 for event in begun)
