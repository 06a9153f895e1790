"""Scripts that make a model or an optimizer again and again: folds, trials, clients, rounds."""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

CLIENTS = """
import copy, time, torch
from torch import nn
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))
class Client:
    def __init__(self, net):
        self.net = copy.deepcopy(net)
        self.opt = torch.optim.SGD(self.net.parameters(), 0.01)
    def train(self):
        for _ in range(20):
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.net(x), y).backward()
            self.opt.step()
            time.sleep(0.006)  # no windows: each step is measured
        return self.net.state_dict()
for _ in range(16):
    net.load_state_dict(Client(net).train())
"""
ROUNDS = """
import time, torch
from torch import nn
torch.set_num_threads(1)
x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
for _ in range(8):
    opt = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(200):
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()
    time.sleep(0.3)
"""


def ran(tmp_path, script):
    (tmp_path / "train.py").write_text(script)
    outcome = run_script([str(tmp_path / "train.py")])
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    (guest,) = outcome.guests
    return guest


def test_the_forwards_of_each_clients_model_are_seen(tmp_path):
    records = ran(tmp_path, CLIENTS).steps
    late = [record for record in records if record["step"] >= 240]
    seen = [record for record in late if record["forward_ns"] > 0]
    steps = [sum(record["n_steps"] for record in some) for some in (late, seen)]
    assert steps[0] == pytest.approx(80, abs=8)
    # the first step of a model is over before its optimizer is known
    assert steps[1] >= 0.9 * steps[0]


def test_updates_that_were_counted_before_another_optimizer_came_are_booked(tmp_path):
    records = ran(tmp_path, ROUNDS).steps
    assert sum(record["n_steps"] for record in records) == pytest.approx(1600, abs=2)
    assert sum(record["optimizer_steps"] for record in records) == pytest.approx(1600, abs=2)
    for record in records:
        # the update that another optimizer makes may be told with the steps before it
        assert abs(record["optimizer_steps"] - record["n_steps"]) <= 1
        assert record["wall_max_ns"] <= record["wall_ns"]
