"""Gradients of gradients: a penalty's, which may come more seldom, and those of meta-learning."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys, torch
from torch.func import functional_call
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range(4):
    optimizer.zero_grad()
    x = torch.ones(8, 4, requires_grad=True)
    if sys.argv[1] == "penalty":
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        loss = net(x).sum() + slope.square().sum()
    elif sys.argv[1] == "equation":
        (slope,) = torch.autograd.grad(net(x).sin().sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        loss = (bend[:, :1] - slope).square().sum()
    elif sys.argv[1] in ("inner", "look"):
        weights = dict(net.named_parameters())
        loss = functional_call(net, weights, (x,)).square().sum()
        keeps = sys.argv[1] == "look"
        slopes = torch.autograd.grad(loss, list(net.parameters()), retain_graph=keeps)
        if not keeps:
            moved = {name: w - 0.1 * slope for (name, w), slope in zip(weights.items(), slopes)}
            loss = functional_call(net, moved, (x,)).square().sum()
    else:
        weights = dict(net.named_parameters())
        loss = functional_call(net, weights, (x,)).square().sum()
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        moved = {name: w - 0.1 * slope for (name, w), slope in zip(weights.items(), slopes)}
        loss = functional_call(net, moved, (x,)).square().sum()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("kind", ["penalty", "meta", "equation"])
def test_what_gradients_of_gradients_are_for(tmp_path, kind):
    """Those of weights are meta-learning's; several before a backward are the loss itself."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), kind])
    assert outcome.exit_code == 0, outcome.stderr
    (guest,) = outcome.guests
    told = [news for news in guest.of_type("hello_update") if news.get("create_graph")]
    assert told
    assert bool(told[-1].get("meta_gradients")) == (kind == "meta")
    assert bool(told[-1].get("derivatives")) == (kind == "equation")


@pytest.mark.parametrize("kind", ["inner", "look"])
def test_an_inner_update_uses_its_graph_up(tmp_path, kind):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), kind])
    assert outcome.exit_code == 0, outcome.stderr
    (guest,) = outcome.guests
    told = [news for news in guest.of_type("hello_update") if news.get("inner_gradients")]
    assert bool(told) == (kind == "inner")
