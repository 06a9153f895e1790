"""What a function does with its own ``locals()`` is not changed by a look at its variables."""

import sys

import pytest
from agent_support import run_plain, run_script

from gputop_agent.runtime import variables

pytestmark = pytest.mark.e2e

SETTINGS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Data(DataLoader):
    def __init__(self, rows, batch):
        self.settings = settings = locals()
        super().__init__(TensorDataset(torch.randn(rows, 4)), batch_size=batch)

class Opt(torch.optim.SGD):
    def __init__(self, params, lr):
        kept = locals()
        super().__init__(params, lr=lr)
        self.__dict__["kept"] = kept

def train(lr=0.1, width=8):
    settings = locals()
    net = torch.nn.Linear(4, 1)
    opt = Opt(net.parameters(), lr)
    data = Data(64, 4)
    total, history = 0, []
    for epoch in range(20):
        for (x,) in data:
            opt.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            opt.step()
            total = total + loss  # grows: its keeper is searched for
            history.append((net(x), bytearray(100000)))
    print(sorted(settings), sorted(data.settings), sorted(opt.kept))

train()
"""


def test_the_dict_of_locals_stays_as_the_script_made_it(tmp_path):
    script = tmp_path / "settings.py"
    script.write_text(SETTINGS)
    bare = run_plain([str(script)])
    assert run_script([str(script)]).stdout == bare.stdout
    assert "['lr', 'width']" in bare.stdout


def test_variables_of_a_running_function():
    def running(first):
        second = 2
        return variables.of(sys._getframe()), variables.first(sys._getframe()), second

    values, first, _ = running("one")
    assert dict(values)["first"] == "one"
    assert dict(values)["second"] == 2
    assert first == "one"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals() is a snapshot from 3.13 on")
def test_a_frame_whose_dict_is_in_use_is_left_alone():
    def running():
        mine = locals()
        return variables.of(sys._getframe()), mine

    assert running() == ([], {})


def test_vars_of_an_object_hands_nothing_out():
    def running(options):
        return vars(options), variables.of(sys._getframe())

    assert ("options", ValueError) in running(ValueError)[1]
