"""Which line of the user's uses a part without gradients, what ends a graph, and what is loaded."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys, eager, each_kind, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
kind = each_kind.fork()
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
    def forward(self, x):
        if kind == "branch":
            return self.first(x)
        return self.wide(self.first(x))
    def wide(self, x):
        return self.second(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head, self.spare = nn.Linear(8, 2), nn.Linear(8, 4)
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if kind == "reentrant" else block(x)
        if kind == "leaf":
            x = torch.tensor(x.tolist(), requires_grad=True)
        if kind == "detached":
            x = x.detach()
        return self.head(x)
net = Net()
if kind != "spare":
    del net.spare
net.load_state_dict(net.state_dict())
opt = torch.optim.SGD(net.parameters(), 0.01)
for step in range(120):
    opt.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    opt.step()
    if step == 60:
        net.load_state_dict(net.state_dict())
"""
LINES = {
    "branch": "        return self.second(x)",
    "detached": "        for block in self.blocks:",
    "spare": "    def forward(self, x):",
}
KINDS = [*LINES, "reentrant", "leaf", "whole"]


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the kind."""
    script = tmp_path_factory.mktemp("used") / "parts.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), *KINDS], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    return outcome.by_kind(KINDS)


def last_look(guests, kind):
    return guests[kind].of_type("checkup")[-1]


def place(text):
    lines = SCRIPT.split("\n")
    return f"parts.py:{max(i for i, line in enumerate(lines, 1) if line == text)}"


@pytest.mark.parametrize("kind", LINES)
def test_the_line_that_uses_the_part(guests, kind):
    assert last_look(guests, kind)["without_gradient_at"] == place(LINES[kind])


def test_a_part_that_all_gradients_reach_has_no_line(guests):
    assert "without_gradient_at" not in last_look(guests, "whole")


def test_what_ends_the_graph(guests):
    reentrant = next(line for line in SCRIPT.split("\n") if "use_reentrant=True" in line)
    leaf = next(line for line in SCRIPT.split("\n") if "requires_grad=True" in line)
    assert last_look(guests, "reentrant")["reentrant_at"] == place(reentrant)
    assert last_look(guests, "leaf")["new_leaf_at"] == place(leaf)
    assert "reentrant_at" not in last_look(guests, "leaf"), "torch has not warned there"


def test_the_line_that_takes_a_value_out_of_the_graph(guests):
    """Not of a part that is not called, nor of one of which the rest has gradients."""
    assert last_look(guests, "detached")["cut_at"] == place("            x = x.detach()")
    assert last_look(guests, "branch").get("cut_at") is None
    assert last_look(guests, "spare").get("cut_at") is None


def test_weights_that_are_loaded_before_and_in_the_training(guests):
    loads = guests["whole"].of_type("weights_loaded")
    assert [load["into"] for load in loads] == ["Net", "Net"]
    assert loads[0]["step"] == 0 and 60 <= loads[1]["step"] <= 61
    outer, inner = "net.load_state_dict(net.state_dict())", 8 * " "
    assert [load["site"] for load in loads] == [place(outer), place(inner + outer)]
