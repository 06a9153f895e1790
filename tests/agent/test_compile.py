"""torch.compile gives the same graphs, breaks and recompiles with the guest as without, and all
steps are counted.
"""

import json
import os

import pytest
from agent_support import run_plain, run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import json, os, sys, torch, torch._dynamo, torch.utils.data
from torch import nn
import torch._dynamo.utils as utils
N = 8
class Block(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.layer = nn.Linear(rows, columns)
    def forward(self, x): return self.layer(x) * 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Block(8, 12), Block(12, 8)
    def forward(self, x): return self.last(torch.relu(self.first(x)))
def run(kind, backend):
    torch.manual_seed(0)
    options = {"backend": backend, "fullgraph": True}
    net = model = Net()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    source = iter(torch.utils.data.DataLoader(torch.randn(400, 8), 4))
    loss_of = lambda x: model(x).pow(2).mean()
    update = optimizer.step
    if kind == "model": model = torch.compile(net, **options)
    if kind == "in_place": net.compile(**options)
    if kind == "blocks": net.first.compile(**options); net.last.compile(**options)
    if kind == "dynamic": model = torch.compile(net, **options)
    if kind == "loss": loss_of = torch.compile(lambda x: net(x).pow(2).mean(), **options)
    if kind == "optimizer": update = torch.compile(optimizer.step, backend=backend)
    if kind == "late": pass
    @torch.compile(backend=backend)
    def step(x):
        loss = net(x).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss
    losses = []
    for i in range(N):
        x = next(source)
        if kind == "late" and i == 3: net.compile(**options)
        if kind == "dynamic": x = x.repeat(1 + i // 3, 1)
        if kind == "step": losses.append(step(x).item()); continue
        loss = loss_of(x)
        loss.backward()
        update()
        optimizer.zero_grad()
        losses.append(loss.item())
    recompiles = sum(bool(m.recompile_reason) for m in utils.get_compilation_metrics())
    breaks = sum(utils.counters["graph_break"].values())
    print(json.dumps({"kind": kind, "losses": losses, "breaks": breaks,
        "graphs": utils.counters["stats"]["unique_graphs"], "recompiles": recompiles}), flush=True)
    print(json.dumps([kind, os.getpid()]), file=sys.stderr, flush=True)
import atexit
for kind, backend in json.loads(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        run(kind, backend)
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(pid, 0)
"""
KINDS = ["model", "in_place", "blocks", "dynamic", "loss", "optimizer", "step", "late"]
#: those that compile after the first backward, where the guest listens
COMPILED_LATER = {"dynamic", "optimizer", "late"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    script = tmp_path_factory.mktemp("compile") / "compiled.py"
    script.write_text(SCRIPT)
    jobs = [[kind, "aot_eager" if kind in ("optimizer", "step") else "eager"] for kind in KINDS]
    if os.environ.get("GPUTOP_TEST_INDUCTOR"):  # a C++ compiler and a minute
        jobs = [[kind, "inductor"] for kind in KINDS]
    command = [str(script), json.dumps(jobs)]
    plain = run_plain(command, timeout=300)
    outcome = run_script(command, timeout=300)
    assert plain.returncode == outcome.exit_code == 0, plain.stderr + outcome.stderr
    assert outcome.agent_errors == ""
    pids = dict(json.loads(line) for line in outcome.stderr.splitlines() if line.startswith("["))
    guests = {guest.of_type("hello")[0]["pid"]: guest for guest in outcome.guests}
    lines = [
        [json.loads(line) for line in text.splitlines()] for text in (plain.stdout, outcome.stdout)
    ]
    facts = [{fact["kind"]: fact for fact in part} for part in lines]
    return facts[0], facts[1], {kind: guests.get(pid) for kind, pid in pids.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_compiling_is_left_alone_and_steps_are_counted(runs, kind):
    plain, seen, guests = runs
    assert seen[kind] == plain[kind]
    guest = guests[kind]
    assert guest is not None
    assert guest.n_steps == 8
    if kind in COMPILED_LATER:
        assert guest.of_type("compile")[-1]["graphs"] == plain[kind]["graphs"]
        assert guest.phase_ms("compile") > 0
