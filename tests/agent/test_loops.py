"""Loops without a DataLoader: what a step is, and how many samples it trains."""

import json

import pytest
from agent_support import run_script
from hypothesis import given
from hypothesis import strategies as st

from gputop_agent import wire
from gputop_agent.injection import core
from gputop_agent.timing import batch, clock, steps

SCRIPT = """
import gc, json, os, random, sys, eager, torch, torch.nn.functional as F
from torch import nn
def mlp(a, b): return nn.Sequential(nn.Linear(a, 16), nn.ReLU(), nn.Linear(16, b))
def sgd(m): return torch.optim.SGD(m.parameters(), 1e-3)
def acting():
    q, target = mlp(4, 2), mlp(4, 2); opt = sgd(q)
    for t in range(240):
        q(torch.ones(1, 4)).argmax(1).item()
        if t % 4 == 0:
            with torch.no_grad(): best = target(torch.randn(64, 4)).max(1).values
            opt.zero_grad()
            F.mse_loss(q(torch.randn(64, 4)).max(1).values, best).backward(); opt.step()
    return 60, 64
def adversaries():
    g, d = mlp(8, 4), mlp(4, 1); a, b = sgd(g), sgd(d)
    for _ in range(60):
        b.zero_grad(); d(torch.randn(16, 4)).mean().backward(); fake = g(torch.randn(16, 8))
        d(fake.detach()).mean().backward(); b.step()
        a.zero_grad(); d(fake).mean().backward(); a.step()
    return 60, 16
def alternating():
    m, n = mlp(4, 4), mlp(4, 4); both = [sgd(m), sgd(n)]
    for i in range(60):
        opt = both[i % 2]; opt.zero_grad(); n(m(torch.randn(16, 4))).sum().backward(); opt.step()
    return 60, 16
def branches():
    m, n = mlp(4, 4), mlp(4, 4); a, b = sgd(m), sgd(n)
    for i in range(60):
        loss = n(m(torch.randn(16, 4))).sum(); a.zero_grad(); b.zero_grad(); loss.backward()
        if i % 2: a.step()
        else: b.step()
    return 60, 16
def accumulated():
    m, n = mlp(4, 4), mlp(4, 4); a, b = sgd(m), sgd(n)
    for i in range(60):
        for _ in range(3): n(m(torch.randn(16, 4))).sum().backward()
        a.step(); b.step(); a.zero_grad(); b.zero_grad()
    return 60, 48
def closures():
    m = mlp(4, 1); opt = torch.optim.LBFGS(m.parameters(), max_iter=3)
    x, y = torch.randn(64, 4), torch.randn(64, 1)
    for i in range(20):
        def closure():
            opt.zero_grad(); loss = F.mse_loss(m(x), y); loss.backward(); return loss
        opt.step(closure)
        m.eval(); F.mse_loss(m(x), y).item(); m.train()
        with torch.no_grad(): m(x)
    return 20, None
class Words(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(50, 8); s.r = nn.LSTM(8, 8, 2); s.o = nn.Linear(8, 50)
    def forward(s, x, h): out, h = s.r(s.e(x), h); return s.o(out), h
def time_first():
    m = Words(); opt = sgd(m)
    for i in range(60):
        h = torch.zeros(2, 20, 8), torch.zeros(2, 20, 8); x = torch.randint(0, 50, (35, 20))
        opt.zero_grad(); out, h = m(x, h)
        F.cross_entropy(out.view(-1, 50), x.view(-1)).backward(); opt.step()
    return 60, 20
torch.manual_seed(0); gc.collect(); gc.freeze()
for name in sys.argv[2:]:
    pid = os.fork()
    if not pid:
        told = globals()[name]()
        with open(sys.argv[1], "a") as file:
            file.write(json.dumps([name, os.getpid(), *told]) + "\\n")
        sys.exit()
    os.waitpid(pid, 0)
"""
assert core.HOOKS  # the guest loads itself in this order
NAMES = [
    "acting",
    "adversaries",
    "alternating",
    "branches",
    "accumulated",
    "closures",
    "time_first",
]


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loops")
    script, told = folder / "loops.py", folder / "told.jsonl"
    script.write_text(SCRIPT)
    outcome = run_script([str(script), str(told), *NAMES], timeout=400)
    assert (outcome.exit_code, outcome.stderr, outcome.agent_errors) == (0, "", "")
    guests = {guest.of_type("hello")[0]["pid"]: guest for guest in outcome.guests}
    rows = [json.loads(line) for line in told.read_text().splitlines()]
    return {name: (n, samples, guests[pid]) for name, pid, n, samples in rows}


@pytest.mark.e2e
@pytest.mark.parametrize("name", NAMES)
def test_each_pass_is_a_step_and_counts_its_batch(loops, name):
    n, samples, guest = loops[name]
    assert guest.n_steps == n
    for record in guest.steps:
        phases = [record[f"{phase}_ns"] for phase in wire.PHASES]
        assert min(phases) >= 0 and sum(phases) == record["wall_ns"]
    if samples is not None:  # the first forward runs before any module is known
        counted = sum(record["samples"] for record in guest.steps)
        assert samples * (n - 1) <= counted <= samples * n


@given(
    st.lists(st.integers(-(10**9), 10**10), min_size=2, max_size=10).filter(
        lambda parts: sum(parts) >= 0
    )
)
def test_no_phase_is_negative_whatever_was_moved(parts):
    levelled = steps._levelled(parts)
    assert min(levelled) >= 0 and sum(levelled) == sum(parts)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-(10**6), 10**7))
def test_no_more_is_moved_than_the_step_has(before, inside, moved):
    clock.reset()
    clock.totals[0] = before + inside
    clock.floor[0] = before
    clock.move(moved, 0, 1)
    assert clock.totals[0] >= before and clock.totals[0] + clock.totals[1] == before + inside
    clock.reset()


@pytest.mark.parametrize(
    ("shapes", "axis"),
    [
        ([(64, 4)], 0),
        ([(64, 4), (64,)], 0),
        ([(35, 20), (2, 20, 200), (2, 20, 200)], 1),
        ([(35, 20, 8), (20,)], 1),
        ([(35, 20), (7, 3)], None),
        ([(20, 20), (20,)], 0),
    ],
)
def test_tensors_agree_on_the_dimension_of_the_batch(shapes, axis):
    assert batch.batch_axis(shapes) == axis
