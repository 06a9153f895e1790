"""Loops over a loader in which nothing trains, with gradients and in training mode."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

TESTED_AS_IT_TRAINS = """
import sys, time, torch, torch.utils.data
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        time.sleep(0.006)
        return self.layer(x)
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
train = torch.utils.data.DataLoader(torch.randn(320, 8), 4)
held_out = torch.utils.data.DataLoader(torch.randn(40, 8), 4)
for step, batch in enumerate(train):
    optimizer.zero_grad()
    if sys.argv[1] == "summed":
        sum(net(part).square().mean() for part in held_out).backward()
    net(batch).square().mean().backward()
    optimizer.step()
    if sys.argv[1] == "tested" and step % 10 == 9:
        losses = [net(part).square().mean().item() for part in held_out]
"""


def test_a_test_loop_with_gradients_in_training_mode_is_an_evaluation(tmp_path):
    script = tmp_path / "tested.py"
    script.write_text(TESTED_AS_IT_TRAINS)
    outcome = run_script([str(script), "tested"])
    assert (outcome.exit_code, outcome.agent_errors) == (0, "")
    guest = outcome.guests[0]
    assert guest.n_steps == 80
    assert sum(record["samples"] for record in guest.steps) == 320
    # the last loop comes after the last step
    assert guest.phase_ms("eval") == pytest.approx(7 * 10 * 6.2, rel=0.2)
    assert guest.phase_ms("forward") == pytest.approx(80 * 6.2, rel=0.2)


def test_a_loop_whose_losses_are_summed_up_trains(tmp_path):
    script = tmp_path / "summed.py"
    script.write_text(TESTED_AS_IT_TRAINS)
    outcome = run_script([str(script), "summed"])
    assert (outcome.exit_code, outcome.agent_errors) == (0, "")
    guest = outcome.guests[0]
    assert guest.n_steps == 80
    assert all(record["samples"] == 40 + 4 for record in guest.steps[1:])
    assert guest.phase_ms("eval") == 0
