"""Of short plain steps most are not taken apart: what stays exact, and what ends it."""

import json

import pytest
from agent_support import run_script

from gputop_agent import wire

pytestmark = pytest.mark.e2e

BATCH = 4
SCRIPT = """
import contextlib, copy, json, os, pickle, sys, time, torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset
spent = dict.fromkeys(("data", "forward", "backward", "optimizer", "other"), 0.0)
def spin(phase, us):
    began = time.perf_counter()
    while time.perf_counter() - began < us / 1e6: pass
    spent[phase] += us / 1e3
class Rows(IterableDataset):
    def __iter__(self):
        while True: yield torch.ones(8)
def collate(rows):
    spin("data", 30)
    return torch.stack(rows)
class Slow(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        spin("optimizer", 50)
        return super().step(closure)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        if x.shape[1] == 5: raise ValueError("bad batch")
        if torch.is_grad_enabled(): spin("forward", 80)
        return self.layer(x)
net, criterion = Net(), nn.MSELoss()
net.layer.weight.register_hook(lambda gradient: spin("backward", 60))
optimizer = Slow(net.parameters(), 1e-9)
batches, step, log = iter(DataLoader(Rows(), 4, collate_fn=collate)), 0, []
lane, state, thin = (sys.modules["gputop_agent." + name] for name in ("lane", "state", "thin"))
L, disturbance, disturbed, seen = state.L, None, 0, 0
thin.SHORT_NS = 10**9  # a busy machine's steps too
def train(n):
    global step, disturbed, seen
    for _ in range(n):
        x = next(batches)
        now = disturbance if L.thin else None
        seen += L.thin
        if now == "raise":
            with contextlib.suppress(ValueError): net(torch.ones(1, 5))
        if now == "evaluate":
            net.eval()
            with torch.no_grad():
                began = time.perf_counter()
                while time.perf_counter() - began < 0.1: net(x)
            net.train()
        if now == "copy": copy.deepcopy(net), pickle.dumps(net)
        loss = criterion(net(x), x)
        if now == "gradients": torch.autograd.grad(net(x).sum(), list(net.parameters()))
        if now == "nan": loss = loss * float("nan")
        loss.backward()
        if now == "twice": net(x).sum().backward()
        if now == "clip": nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if now == "register":
            log.append(["ran", []])
            handle = register_optimizer_step_post_hook(lambda *_: log[-1][1].append(step))
        if now == "skip": optimizer.zero_grad()
        else: optimizer.step()
        optimizer.zero_grad()
        if now == "register": handle.remove()
        if now == "save": torch.save(net.state_dict(), sys.argv[1])
        if now == "write":
            with torch.no_grad(): net.layer.weight.mul_(0.99)
        if now == "fork":
            child = os.fork()
            if not child: os._exit(int(not type(net.__dict__["_compiled_call_impl"]).__name__ == "CallSlot"))
            log.append(["child", os.waitpid(child, 0)[1]])
        spin("other", 40)
        if now:
            log.append([now, step])
            disturbed += 1
        step += 1
def until_thin():
    thin.T.looked = thin.T.last_excess = 0  # looks that a busy machine was the reason for
    for _ in range(200):
        if L.thin_from > state.S.step: L.thin_from = state.S.step
        train(20)
        if L.thin: return True
    return False
train(600)
for name in sys.argv[2:]:
    log.append(["thin", until_thin()])
    disturbance, before, thin_from = name, disturbed, L.thin_from
    for _ in range(400):
        if disturbed > before: break
        train(1)
    disturbance, last = None, step
    for _ in range(100):
        train(10)
        if state.S.step > last + 20: break  # it was booked
    log.append(["later", L.thin_from - thin_from])
until_thin()
train(400)
print(json.dumps([step, seen, spent, log, L.thin, len(lane.marks)]))
"""
KINDS = ["raise", "evaluate", "copy", "gradients", "twice", "clip", "skip", "save", "write", "register", "fork", "nan"]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thin")
    script = folder / "short.py"
    script.write_text(SCRIPT)
    found = run_script([str(script), str(folder / "state.pt"), *KINDS])
    assert (found.exit_code, found.stderr, found.agent_errors) == (0, "", "")
    return found


@pytest.fixture(scope="module")
def told(outcome):
    return json.loads(outcome.stdout)


def test_each_disturbance_came_in_a_thin_step(told):
    _, seen, _, log, *_ = told
    assert seen > 300
    assert all(found for name, found in log if name == "thin")
    assert [name for name, _ in log if name in KINDS] == KINDS
    assert ["child", 0] in log  # the hooks were back in a forked child


def test_a_hook_that_somebody_registers_meanwhile_runs_until_it_is_removed(told):
    log = told[3]
    (step,) = [step for name, step in log if name == "register"]
    assert ["ran", [step]] in log


def test_nothing_is_lost_or_counted_twice(outcome, told):
    guest, (steps, *_) = outcome.guests[0], told
    updates = steps - 1  # one was skipped: its batch belongs to the step that ends with the next update
    for record in guest.steps:
        assert record["wall_ns"] == sum(record[f"{phase}_ns"] for phase in wire.PHASES)
        assert min(record[f"{phase}_ns"] for phase in wire.PHASES) >= 0
    counted = {name: sum(r[name] for r in guest.steps) for name in ("samples", "micro_batches", "optimizer_steps")}
    assert counted["samples"] == BATCH * steps and counted["optimizer_steps"] == updates
    assert guest.n_steps == updates == guest.of_type("goodbye")[0]["steps"]
    assert steps <= counted["micro_batches"] - 1 <= steps + 1  # "twice", and the gradients that were asked for
    assert guest.flags & wire.F_CHECKPOINT


def test_time_lies_where_the_script_spent_it(outcome, told):
    guest, (_, _, spent, *_) = outcome.guests[0], told
    for phase, ms in spent.items():
        assert guest.phase_ms(phase) >= 0.95 * ms - 8, phase


def test_a_loss_that_is_not_finite_is_told_with_the_steps_that_were_not_read(outcome, told):
    (step,) = [step for name, step in told[3] if name == "nan"]
    event = outcome.guests[0].of_type("nonfinite")[0]
    first = event["step"] + 1  # the skipped update came before
    assert first - event["unread"] <= step <= first <= step + 64  # one in 64 of thin steps leaves its loss


def test_a_loss_that_is_not_of_the_last_step_says_so(outcome):
    earlier = [record["n_steps"] for record in outcome.guest.steps if record["flags"] & wire.F_LOSS_EARLIER]
    assert earlier and min(earlier) > 1


def test_evaluation_that_was_missed_is_not_missed_again(outcome, told):
    log = told[3]
    after = log[log.index(next(one for one in log if one[0] == "evaluate")) + 1]
    assert after[0] == "later" and after[1] > 0  # steps are taken apart for a while


EPOCHS = """
import random, sys, time, torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
kind = sys.argv[1]
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
L = sys.modules["gputop_agent.state"].L
sys.modules["gputop_agent.thin"].SHORT_NS = 10**9  # a busy machine's steps too
random.seed(0)
class Uneven:
    def __iter__(self):
        for _ in range(200): yield [0] * random.randint(1, 6)
    def __len__(self): return 200
data = torch.ones(802, 8)
samples = thin = 0
def pause():
    time.sleep(0.0005)  # the line
for epoch in range(8):
    for x in DataLoader(data, batch_sampler=Uneven()) if kind == "uneven" else DataLoader(data, 4):
        L.thin_from = min(L.thin_from, 300)
        samples, thin = samples + len(x), thin + L.thin
        out = checkpoint(net, x.requires_grad_(), use_reentrant=True) if kind == "nested" else net(x)
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if kind == "even": pause()
print(samples, thin)
"""


@pytest.mark.parametrize("kind", ["even", "uneven", "nested"])
def test_samples_are_counted_although_few_batches_are_looked_at(tmp_path, kind):
    script = tmp_path / "epochs.py"
    script.write_text(EPOCHS)
    found = run_script([str(script), kind])
    assert (found.exit_code, found.stderr, found.agent_errors) == (0, "", "")
    samples, thin = map(int, found.stdout.split())
    assert thin == 0 if kind == "nested" else thin > 100  # a backward inside another one would be counted, too
    assert sum(record["micro_batches"] for record in found.guest.steps) == found.guest.n_steps
    assert sum(record["samples"] for record in found.guest.steps) == samples
    if kind == "even":  # the stack alone tells the phase of a thin step
        line = 1 + next(i for i, text in enumerate(EPOCHS.splitlines()) if "# the line" in text)
        seen = {}
        for event in found.guest.of_type("stacks"):
            for sample in event["samples"]:
                key = event["phase"], sample["site"].endswith(f"epochs.py:{line}")
                seen[key] = seen.get(key, 0) + sample["count"]
        named = seen.get(("other", True), 0)
        assert named > 5 and named > 2 * (sum(seen.values()) - named) / 3, seen
