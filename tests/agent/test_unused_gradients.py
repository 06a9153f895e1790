"""Gradients that are computed for nothing, in real loops: cleared too early, in a group without a
learning rate, missing for one of two optimizers; each beside what looks alike and is meant.
"""

import pytest
from agent_support import run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys, eager, each_kind, torch
from torch import nn
kind = each_kind.fork()
if kind in ("forgotten", "dropped", "updated"):
    first, last = torch.randn(16, 12, requires_grad=True), torch.randn(12, 8, requires_grad=True)
    for step in range(160):
        inner = (torch.randn(4, 16) @ first).tanh() * (0.0 if kind == "dropped" else 1.0)
        (inner @ last).square().mean().backward()
        with torch.no_grad():
            for w in (last,) if kind == "forgotten" else (first, last):
                w -= 0.01 * w.grad
                w.grad = None
    sys.exit()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 8)
    def forward(self, x): return self.head(self.body(x).tanh())
net = Net()
rates = {"resting": 0.0, "all at rest": 0.0}
groups = [
    {"params": net.body.parameters(), "lr": rates.get(kind, 1e-3)},
    {"params": net.head.parameters(), "lr": 0.0 if kind == "all at rest" else 1e-3},
]
opt, other = torch.optim.Adam(groups), None
if kind in ("apart", "together"):
    opt = torch.optim.Adam(net.body.parameters())
    other = torch.optim.SGD(net.head.parameters(), lr=1e-3)
weights = list(net.parameters())
def begin_part(): opt.zero_grad()
def loss_of(x): return net(x).square().mean()
for step in range(160):
    x = torch.randn(4, 16)
    opt.zero_grad()
    if other: other.zero_grad()
    if kind in ("cleared", "elsewhere", "gathered", "by hand"):
        kept = []
        for part in range(3):
            if kind == "elsewhere": begin_part()
            elif kind != "gathered": opt.zero_grad()
            loss_of(torch.randn(4, 16)).backward()
            kept.append([w.grad.clone() for w in weights])
        if kind == "by hand":
            for w, *parts in zip(weights, *kept): w.grad = sum(p.clamp(-1, 1) for p in parts)
    elif kind == "sharpness":
        loss_of(x).backward()
        steps = [0.01 * w.grad for w in weights]
        with torch.no_grad():
            for w, s in zip(weights, steps): w += s
        opt.zero_grad()
        loss_of(x).backward()
        with torch.no_grad():
            for w, s in zip(weights, steps): w -= s
    elif kind == "attack":
        bent = x.clone().requires_grad_(True)
        loss_of(bent).backward()
        opt.zero_grad()
        loss_of(x + 0.1 * bent.grad.sign()).backward()
    elif kind == "apart":
        body = net.body(x).square().mean()
        (body + net(x).mean().item()).backward()
    else:
        loss_of(x).backward()
    if kind == "cleared": nn.utils.clip_grad_norm_(weights, 0.01)
    opt.step()
    if other: other.step()
"""
CLEARED = ["cleared", "elsewhere"]
BY_HAND = ["forgotten", "dropped", "updated"]
KINDS = [
    *CLEARED,
    "gathered",
    "by hand",
    "sharpness",
    "attack",
    "resting",
    "all at rest",
    "apart",
    "together",
    *BY_HAND,
]


@pytest.fixture(scope="module")
def guests(tmp_path_factory):
    """What each child's guest sent, by the habit."""
    script = tmp_path_factory.mktemp("unused") / "loops.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), *KINDS], timeout=200)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    return outcome.by_kind(KINDS)


def looks(guests, kind):
    return guests[kind].of_type("checkup")


def test_gradients_of_all_batches_but_the_last_are_cleared(guests):
    last = looks(guests, "cleared")[-1]
    assert (last["cleared_backwards"], last["step_backwards"]) == (2, 3)
    assert last["cleared_looks"] >= 3
    line = 1 + SCRIPT.split("\n").index('            elif kind != "gathered": opt.zero_grad()')
    assert last["cleared_at"] == f"loops.py:{line}"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CLEARED])
def test_gradients_that_are_kept_or_cleared_on_purpose(guests, kind):
    assert len(looks(guests, kind)) >= 4
    assert not any("cleared_backwards" in look for look in looks(guests, kind))


def test_the_line_that_clears_lies_in_another_function(guests):
    found = looks(guests, "elsewhere")[-1]
    line = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if "def begin_part" in text)
    assert found["cleared_looks"] >= 3 and found["cleared_at"] == f"loops.py:{line}"


def test_a_group_without_a_learning_rate(guests):
    last = looks(guests, "resting")[-1]
    assert (last["resting"], last["resting_names"]) == (272, ["body.weight", "body.bias"])
    others = [kind for kind in KINDS if kind != "resting"]
    assert not any("resting" in look for kind in others for look in looks(guests, kind))


def test_a_weight_that_a_loop_without_optimizer_forgets(guests):
    last = looks(guests, "forgotten")[-1]
    assert (last["stray"], last["graded"], last["stray_names"]) == (
        192,
        288,
        ["a tensor of 16 x 12"],
    )
    assert last["stray_looks"] >= 3
    others = [kind for kind in KINDS if kind != "forgotten"]
    assert not any("stray" in look for kind in others for look in looks(guests, kind))


def test_gradients_of_zero_in_a_loop_without_optimizer(guests):
    last = looks(guests, "dropped")[-1]
    assert (last["zero_gradient"], last["trainable"], last["zero_gradient_looks"]) == (288, 288, 3)
    assert set(last["zero_gradient_names"]) == {"a tensor of 16 x 12", "a tensor of 12 x 8"}
    for kind in ("forgotten", "updated"):
        assert not any("zero_gradient" in look for look in looks(guests, kind))


def test_an_optimizer_that_no_gradient_comes_to(guests):
    (event,) = guests["apart"].of_type("no_gradient")
    assert (event["optimizer"], event["values"], event["looks"]) == ("SGD", 136, 3)
    assert event["names"] == ["head.weight", "head.bias"]
    line = SCRIPT.split("\n").index("        (body + net(x).mean().item()).backward()") + 1
    assert event["at"] == f"loops.py:{line}"
    assert not any(guests[kind].of_type("no_gradient") for kind in KINDS if kind != "apart")
