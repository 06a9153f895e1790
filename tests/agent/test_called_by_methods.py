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


def guest_of(tmp_path, text):
    """What the guest saw of a script that ends well."""
    script = tmp_path / "train.py"
    script.write_text(text)
    outcome = run_script([str(script)])
    assert (outcome.exit_code, outcome.agent_errors) == (0, "")
    return outcome.guests[0]


def test_a_model_whose_forward_is_called_by_name_beside_a_loss_module(tmp_path):
    guest = guest_of(tmp_path, SCRIPT)
    assert guest.n_steps == 60
    assert guest.phase_ms("forward") > 0.9 * 58 * 8


IN_PARTS = """
import time, torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        time.sleep(0.004)
        return self.layer(x)
class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet, self.outlet = nn.Linear(8, 8), nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
    def forward(self, x):
        x = self.inlet(x)
        for block in self.blocks:
            x = block(x)
        return self.outlet(x)
stage = Stage()
optimizer = torch.optim.SGD(stage.parameters(), 1e-3)
for _ in range(60):
    optimizer.zero_grad()
    stage.forward(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


def test_blocks_of_a_list_are_seen_beside_layers_that_are_called_themselves(tmp_path):
    """A stage of a pipeline (picotron's) is called by its method: of its 132 ms, 3 were told."""
    guest = guest_of(tmp_path, IN_PARTS)
    assert guest.phase_ms("forward") > 0.9 * 58 * 8


WRAPPED = """
import time, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        time.sleep(0.002)
        return self.layer(x)
class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = Net()
        self.register_buffer("betas", torch.linspace(0, 1, 10))
    def forward(self, x):
        return (self.network(x) - x).square().mean()
    def sample(self):
        x = torch.randn(4, 8)
        for _ in self.betas:
            x = self.network(x)
        return x
model = Diffusion()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).backward()
    optimizer.step()
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            model.sample()
        model.train()
"""


def test_a_network_that_a_model_wraps_is_evaluated_without_the_model(tmp_path):
    """As diffusion models and peft's do, whose sampling and generate() were told as other."""
    guest = guest_of(tmp_path, WRAPPED)
    assert guest.phase_ms("forward") > 0.9 * 58 * 2
    assert 0.9 * 40 < guest.phase_ms("eval") < 4 * 60, "the last one comes after the last step"
