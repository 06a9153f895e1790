"""A seed that is set in the loop, beside seeds that differ, and draws that do not come from it."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import eager, each_kind, torch
from torch import nn
kind = each_kind.fork()
net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0 if kind == "no draws" else 0.2))
opt = torch.optim.SGD(net.parameters(), 0.01)
def step_of(number):
    if number > 9:  # the hello tells the seed, by which the children are known
        if kind in ("each step", "no draws"): torch.manual_seed(3)
        if kind == "its own": torch.manual_seed(number)
    loss = net(torch.randn(4, 8)).square().mean()
    if kind == "forked" and number > 9:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            torch.rand(2)
    opt.zero_grad()
    loss.backward()
    opt.step()
for number in range(130):
    step_of(number)
"""
KINDS = ["each step", "no draws", "its own", "forked", "plain"]


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the kind."""
    script = tmp_path_factory.mktemp("seeds") / "seeds.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), *KINDS], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    return outcome.by_kind(KINDS)


def test_a_seed_that_each_step_sets(guests):
    last = guests["each step"].of_type("checkup")[-1]
    assert last["reseeded_looks"] >= 3
    line = next(i for i, text in enumerate(SCRIPT.split("\n"), 1) if "manual_seed(3)" in text)
    assert last["reseeded_at"] == f"seeds.py:{line}"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "each step"])
def test_numbers_that_do_not_repeat_or_are_not_drawn(guests, kind):
    looks = guests[kind].of_type("checkup")
    assert len(looks) >= 4 and not any("reseeded_looks" in look for look in looks)
