"""Forwards without gradients in training mode: a teacher's are a part of the step, however often it
is asked; a picture drawn by thousands of them now and then is an evaluation.
"""

import pytest
from agent_support import run_script

from gputop_agent import wire

pytestmark = pytest.mark.e2e

SCRIPT = """
import copy, eager, each_kind, torch
from torch import nn
kind = each_kind.fork()
net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
teacher = copy.deepcopy(net).requires_grad_(False)
if kind == "in eval mode": teacher.eval()
opt = torch.optim.SGD(net.parameters(), 1e-3)
class World:
    def step(self, action): return action, action.mean(), False
world = World()
@torch.no_grad()
def draw(net):
    for rows in torch.randn(300, 4, 8): net(rows)
@torch.no_grad()
def act():
    for _ in range(300):
        seen, reward, done = world.step(net(torch.randn(4, 8)))
def train():
    for step in range(120):
        x, y = torch.randn(16, 8), torch.randn(16, 8)
        if kind in ("twice", "in eval mode"):
            with torch.no_grad(): y = teacher(x) + teacher(y)
        if kind == "drawn" and step % 40 == 39: draw(net)
        if kind == "copy" and step % 40 == 39: draw(teacher)
        if kind == "in each": draw(net)
        opt.zero_grad()
        (net(x) - y).square().mean().backward()
        opt.step()
train()
"""
ACTS = SCRIPT.replace('if kind == "in each": draw(net)', "if step % 40 == 39: act()")
EVALUATE, TRAIN = ["drawn", "copy"], ["twice", "in eval mode", "in each"]


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the kind."""
    folder = tmp_path_factory.mktemp("soft")
    (folder / "loops.py").write_text(SCRIPT.replace("world.step(", "world.moved("))
    outcome = run_script([str(folder / "loops.py"), *EVALUATE, *TRAIN], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    return outcome.by_kind([*EVALUATE, *TRAIN])


def evaluated(guest):
    """Records with an evaluation, after the first steps."""
    return [
        record for record in guest.steps if record["flags"] & wire.F_EVAL and record["step"] > 10
    ]


@pytest.mark.parametrize("kind", TRAIN)
def test_what_each_step_asks_for_is_training(guests, kind):
    assert not evaluated(guests[kind])


@pytest.mark.parametrize("kind", EVALUATE)
def test_what_is_drawn_now_and_then_is_an_evaluation(guests, kind):
    records = evaluated(guests[kind])
    # booked to the step that had ended when it was drawn
    assert [record["step"] for record in records] == [38, 78, 118]
    assert all(record["eval_ns"] > record["forward_ns"] for record in records)


def test_a_policy_that_acts_now_and_then_is_training(tmp_path):
    (tmp_path / "acts.py").write_text(ACTS)
    outcome = run_script([str(tmp_path / "acts.py"), "drawn"], timeout=200)
    (guest,) = outcome.by_kind(["drawn"]).values()
    assert not evaluated(guest)
