"""Looks where forward and backward run within the update, and where all of it is frozen."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys, time, torch
from torch import nn
torch.manual_seed(0)
body, head = nn.Linear(8, 8), nn.Linear(8, 4)
net = nn.Sequential(body, head)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
other = nn.Linear(8, 4)
def loss_of(step):
    x, kinds = torch.randn(16, 8), torch.full((16,), step // 20 % 4)
    if sys.argv[1] == "exchanged" and step >= 30:
        return nn.functional.cross_entropy(other(x), kinds)
    return nn.functional.cross_entropy(net(x), kinds)
for step in range(120):
    time.sleep(0.004)
    if sys.argv[1] == "exchanged" and step == 30:
        net.requires_grad_(False)
    if sys.argv[1] == "closure":
        def closure():
            optimizer.zero_grad()
            loss = loss_of(step)
            loss.backward()
            return loss
        optimizer.step(closure)
    else:
        optimizer.zero_grad()
        loss_of(step).backward()
        optimizer.step()
"""


def looks(tmp_path, kind):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), kind])
    assert (outcome.exit_code, outcome.agent_errors) == (0, "")
    return outcome.guests[0].of_type("checkup")


@pytest.mark.parametrize("kind", ["closure", "loop"])
def test_the_graph_of_a_closure_is_looked_at_as_that_of_a_loop(tmp_path, kind):
    """Lightning and L-BFGS run forward and backward within ``optimizer.step()``."""
    last = looks(tmp_path, kind)[-1]
    assert last["class_looks"] == last["one_class_looks"] >= 3
    assert last["backward_at"].startswith("script.py:")


def test_an_optimizer_all_of_which_is_frozen_is_told(tmp_path):
    exchanged = looks(tmp_path, "exchanged")
    assert not any("frozen_whole" in look for look in exchanged if look["step"] < 30)
    assert exchanged[-1]["frozen_whole"] and exchanged[-1]["frozen_group"] == 8 * 9 + 4 * 9
