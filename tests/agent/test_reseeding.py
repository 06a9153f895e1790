"""A seed that is set in the loop, beside seeds that differ, and draws that do not come from it."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import eager, each_kind, torch
from torch import nn
kind = each_kind.fork()
drops = kind in ("each step", "its own", "put back")
net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2 if drops else 0.0))
rows = torch.randn(4, 8)
opt = torch.optim.SGD(net.parameters(), 0.01)
def step_of(number):
    if number > 9:  # the hello tells the seed, by which the children are known
        if kind in ("each step", "no draws"): torch.manual_seed(3)
        if kind == "its own": torch.manual_seed(number)
        if kind == "put back":
            if number == 10: torch.manual_seed(4)
            state = torch.get_rng_state()
            torch.manual_seed(4)
            torch.rand(2)
            torch.set_rng_state(state)
    loss = net(rows).square().mean()
    if kind in ("forked", "in the loss") and number > 9:
        with torch.random.fork_rng(enabled=kind == "forked"):
            torch.manual_seed(3)
            torch.rand(2)
    opt.zero_grad()
    loss.backward()
    opt.step()
for number in range(130):
    step_of(number)
"""
AGAIN = ["each step", "in the loss"]
KINDS = [*AGAIN, "no draws", "its own", "forked", "put back", "plain"]


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the kind."""
    script = tmp_path_factory.mktemp("seeds") / "seeds.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), *KINDS], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    return outcome.by_kind(KINDS)


@pytest.mark.parametrize("kind", AGAIN)
def test_a_seed_that_each_step_sets(guests, kind):
    last = guests[kind].of_type("checkup")[-1]
    assert last["seed_calls"] == pytest.approx(last["step"] - last["seeded_since"] + 2, abs=1)
    assert last["seed_calls"] > 50
    lines = [i for i, text in enumerate(SCRIPT.split("\n"), 1) if "manual_seed(3)" in text]
    assert last["seeded_at"] == f"seeds.py:{lines[AGAIN.index(kind)]}"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in AGAIN])
def test_numbers_that_do_not_repeat_or_are_not_drawn(guests, kind):
    looks = guests[kind].of_type("checkup")
    assert len(looks) >= 4 and not any("seed_calls" in look for look in looks)
