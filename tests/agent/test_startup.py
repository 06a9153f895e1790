"""Milestones before the first step: each true, none left open, nothing left in torch."""

import pytest
from agent_support import run_script

SCRIPT = """
import io, os, time, torch, torch.distributed as dist, torch.utils.data
from torch import nn
before = torch.load, nn.Module.load_state_dict
class Data(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, i): return torch.load(io.BytesIO(row))
time.sleep(0.3)
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
kept = io.BytesIO(); torch.save(net.state_dict(), kept); kept.seek(0)
row = io.BytesIO(); torch.save(torch.ones(4), row); row = row.getvalue()
net.load_state_dict(torch.load(kept))
if os.fork() == 0:
    nn.Linear(2, 2)
    os._exit(0)
os.wait()
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for batch in torch.utils.data.DataLoader(Data(), 4, num_workers=2):
    net(batch).sum().backward(); optimizer.step(); optimizer.zero_grad()
import torch.nn.modules.module as module
print(torch.load is before[0], module._global_parameter_registration_hooks,
      "gputop" in dist.init_process_group.__code__.co_filename)
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    script = tmp_path_factory.mktemp("start") / "train.py"
    script.write_text(SCRIPT)
    return run_script([str(script)], RANK="3")


def test_milestones_are_told_in_order_with_begin_end_and_place(outcome):
    assert (outcome.exit_code, outcome.stderr, outcome.agent_errors) == (0, "", "")
    reached = {}
    for event in outcome.milestones:
        assert event["rank"] == 3, "the child and the workers said nothing of their own"
        reached[event["name"]] = event
    names = ["python", "import torch", "model", "torch.load", "weights", "process group"]
    assert list(reached) == [*names, "first batch", "first forward"]
    spans = [(one["began_ns"], one["ended_ns"]) for one in reached.values()]
    assert all(began < ended for began, ended in spans)
    assert [began for began, _ in spans] == sorted(began for began, _ in spans)
    assert reached["model"]["began_ns"] - reached["import torch"]["ended_ns"] >= 0.3e9
    assert reached["model"]["site"].startswith("train.py:")
    begun = [one["name"] for one in outcome.milestones if one["ended_ns"] is None]
    assert begun == ["model", "torch.load", "weights", "process group", "first batch"]


def test_a_model_is_built_once_its_optimizer_is(tmp_path):
    """A long evaluation before the first backward is none of it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nnet = torch.nn.Linear(4, 4)\ntorch.optim.SGD(net.parameters(), 0.01)\n"
    )
    outcome = run_script([str(script)])
    models = [event for event in outcome.milestones if event["name"] == "model"]
    assert [event["ended_ns"] is None for event in models] == [True, False]
    assert models[1]["ended_ns"] - models[0]["began_ns"] < 0.2e9


def test_nothing_of_it_stays_once_the_process_trains(outcome):
    assert outcome.stdout == "False OrderedDict() False\n", "what was there before was a wrapper"
    assert outcome.guest.n_steps == 3


LBFGS = """
import sys, torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(
    net.parameters(), max_iter=1000, max_eval=int(sys.argv[1]), tolerance_grad=0,
    tolerance_change=0,
)
def closure():
    optimizer.zero_grad()
    loss = (net(torch.eye(4)) ** 4).sum()
    loss.backward()
    return loss
for _ in range(2):
    optimizer.step(closure)
"""


@pytest.mark.parametrize(("evaluations", "told"), [(30, 1), (5, 0)])
def test_a_first_update_that_goes_on_is_told(tmp_path, evaluations, told):
    """A whole training may be one update of LBFGS: it waited for its first step to the end."""
    script = tmp_path / "train.py"
    script.write_text(LBFGS)
    outcome = run_script([str(script), str(evaluations)])
    assert (outcome.exit_code, outcome.agent_errors) == (0, "")
    updates = [event for event in outcome.milestones if event["name"] == "first update"]
    assert [event["ended_ns"] for event in updates] == [None] * told
    assert all(event["site"].startswith("train.py:14") for event in updates)
