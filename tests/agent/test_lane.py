"""Short plain steps are noted and booked later; what comes out of turn is booked as it always was."""

import json
import math

import pytest
from agent_support import run_script

from gputop_agent import wire

pytestmark = pytest.mark.e2e

EPOCH, EPOCHS, BATCH, SPIKE = 400, 3, 4, 1e6
SCRIPT = f"""
import contextlib, json, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader
spent = dict.fromkeys(("data", "forward", "backward", "optimizer", "other"), 0.0)
def spin(phase, us):
    began = time.perf_counter()
    while time.perf_counter() - began < us / 1e6: pass
    spent[phase] += us / 1e3
def collate(rows):
    spin("data", 100)
    return torch.stack(rows)
class Slow(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        spin("optimizer", 150)
        return super().step(closure)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        if x.shape[1] == 5: raise ValueError("bad batch")
        if self.training: spin("forward", 200)
        return self.layer(x)
net = Net()
net.layer.weight.register_hook(lambda gradient: spin("backward", 120))
optimizer = Slow(net.parameters(), 1e-12)
longest = step = 0
for epoch in range({EPOCHS}):
    for x in DataLoader(torch.ones({EPOCH * BATCH}, 8), {BATCH}, collate_fn=collate):
        if step == 210:
            with contextlib.suppress(ValueError): net(torch.ones(1, 5))
        if step == 330:
            net.eval()
            with torch.no_grad(): net(x)
            net.train()
        loss = net(x).pow(2)
        if step != 800: loss = loss.mean()
        if step == 520: loss = loss * 0 + {SPIKE}
        loss.backward(torch.ones_like(loss))
        if step == 610: net(x).sum().backward()
        if step == 700: nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step(lambda: net(x).sum()) if step == 900 else optimizer.step()
        optimizer.zero_grad()
        spin("other", 80)
        if step in (150, 1000): time.sleep(0.03)
        if step == 1100: torch.save(net.state_dict(), sys.argv[1])
        longest = max(longest, len(sys.modules["gputop_agent.lane"].marks))
        step += 1
print(json.dumps([longest, spent]))
"""


LONG = """
import json, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        time.sleep(0.002)
        began = time.thread_time_ns()
        while time.thread_time_ns() - began < 1_000_000: pass
        return self.layer(x)
net, longest = Net(), 0
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
for step, x in enumerate(DataLoader(torch.ones(600, 8), 4)):
    loss = net(x).mean()
    loss = loss * float("nan") if step == 140 else loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    longest = max(longest, len(sys.modules["gputop_agent.lane"].cpu_marks))
print(longest)
"""


def test_long_steps_are_noted_with_their_cpu_time(tmp_path):
    script = tmp_path / "long.py"
    script.write_text(LONG)
    found = run_script([str(script)])
    assert (found.exit_code, found.stderr, found.agent_errors) == (0, "", "")
    assert int(found.stdout) > 4
    noted = [record for record in found.guest.steps if record["step"] - record["n_steps"] > 60]
    assert found.guest.n_steps == 150 and len(noted) > 10
    for record in noted:  # 1 ms of computing in each forward, and no record has another one's
        forward_ns, cpu_ns = record["forward_ns"], record["compute_cpu_ns"]
        assert 1e6 * record["n_steps"] <= cpu_ns <= min(record["cpu_ns"], forward_ns + record["backward_ns"])
        assert record["cpu_ns"] < record["wall_ns"]
    told = [record for record in found.guest.steps if record["flags"] & wire.F_NONFINITE]
    assert [event["step"] for event in found.guest.of_type("nonfinite")][:1] == [140]
    assert told and told[0]["step"] - told[0]["n_steps"] < 140 <= told[0]["step"]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lane")
    script = folder / "short.py"
    script.write_text(SCRIPT)
    found = run_script([str(script), str(folder / "state.pt")])
    assert (found.exit_code, found.stderr, found.agent_errors) == (0, "", "")
    return found


def test_every_step_is_counted_whatever_comes_out_of_turn(outcome):
    guest = outcome.guest
    total = EPOCH * EPOCHS
    assert guest.n_steps == total
    for record in guest.steps:
        assert record["wall_ns"] == sum(record[f"{phase}_ns"] for phase in wire.PHASES)
        assert min(record[f"{phase}_ns"] for phase in wire.PHASES) >= 0
    counted = {name: sum(r[name] for r in guest.steps) for name in ("samples", "micro_batches", "optimizer_steps")}
    assert counted == {"samples": BATCH * total, "micro_batches": total + 1, "optimizer_steps": total}
    flagged = {flag: sum(bool(r["flags"] & flag) for r in guest.steps) for flag in (wire.F_EVAL, wire.F_CHECKPOINT)}
    assert flagged == {wire.F_EVAL: 1, wire.F_CHECKPOINT: 1}


def test_time_lies_where_the_script_spent_it(outcome):
    longest, spent = json.loads(outcome.stdout)
    assert longest > 16  # steps were noted
    for phase, ms in spent.items():  # exclusive phases: what is booked to the wrong one is missing from the right one
        assert outcome.guest.phase_ms(phase) >= ms, phase


def test_a_spike_of_one_step_stays_visible(outcome):
    losses = [record["loss_max"] for record in outcome.guest.steps]
    assert max(losses) == pytest.approx(SPIKE, rel=1e-3)
    assert sum(loss > SPIKE / 2 for loss in losses) == 1
    without = [record for record in outcome.guest.steps if math.isnan(record["loss_max"])]
    assert all(record["n_steps"] == 1 for record in without) and len(without) <= 1  # step 800 has a loss for each value


def test_a_loader_without_a_variable_is_described(outcome):
    loader = outcome.guest.of_type("hello")[0]["dataloader"]
    assert (loader["batch_size"], loader["num_workers"], loader["length"]) == (BATCH, 0, EPOCH)
    assert ":" in loader["site"]
