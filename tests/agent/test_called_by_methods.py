"""Models that are called through a method, beside a loss that is called as one should."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import time, torch
from torch import nn
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        time.sleep(0.008)
        return self.layer(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Body()
    def forward(self, x):
        return self.body(x)
net, criterion = Net(), nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for _ in range(60):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    criterion(net.forward(x), x).backward()
    optimizer.step()
"""


def test_a_model_whose_forward_is_called_by_name_beside_a_loss_module(tmp_path):
    script = tmp_path / "by_name.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script)])
    assert (outcome.exit_code, outcome.agent_errors) == (0, "")
    guest = outcome.guests[0]
    assert guest.n_steps == 60
    assert guest.phase_ms("forward") > 0.9 * 58 * 8
