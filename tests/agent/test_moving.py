"""A long evaluation tells that it moves; a wait of the same length does not."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import time, eager, torch
from torch import nn
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
opt = torch.optim.SGD(net.parameters(), 1e-3)
def train(steps):
    for _ in range(steps):
        opt.zero_grad(); net(torch.randn(8, 32)).square().mean().backward(); opt.step()
        time.sleep(0.02)
train(30)
end = time.monotonic() + 5
with torch.no_grad():
    while time.monotonic() < end: net(torch.randn(8, 32))
train(30)
time.sleep(5)
train(30)
"""


def test_an_evaluation_moves_and_a_sleep_does_not(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script)])
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    (guest,) = outcome.guests
    steps = [one["step"] for one in guest.of_type("moving")]
    assert steps and set(steps) <= {29, 30}, steps
