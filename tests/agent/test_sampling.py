"""Of short steps windows are measured and the others counted: what stays exact, and what puts the
hooks in.
"""

import json

import pytest
from agent_support import run_script

from gputop_agent import wire
from gputop_agent.timing import own_cost, steps

pytestmark = pytest.mark.e2e

BATCH, STEPS = 4, 2400
SCRIPT = """
import contextlib, json, os, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
spent = dict.fromkeys(("data", "forward", "backward", "optimizer", "other"), 0.0)
def timed(phase, call, *args):
    began = time.perf_counter()
    result = call(*args)
    spent[phase] += time.perf_counter() - began
    return result
class Rows(IterableDataset):
    def __iter__(self):
        while True: yield torch.ones(8)
def collate(rows):
    time.sleep(150e-6)
    return torch.stack(rows)
class Slow(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        def update():
            time.sleep(100e-6)
            return super(Slow, self).step(closure)
        return timed("optimizer", update)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        time.sleep(200e-6)
        return self.layer(x)
agent = {
    "sampling": sys.modules["gputop_agent.timing.sampling"],
    "session": sys.modules["gputop_agent.runtime.session"],
}
agent["sampling"].SHORT_NS = agent["sampling"].LONG_NS = 10**9  # a busy machine's steps too
S = agent["session"].session
net = Net()
net.layer.weight.register_hook(lambda gradient: time.sleep(150e-6))
optimizer = Slow(net.parameters(), 1e-9)
original = {"backward": torch.autograd.backward.__wrapped__}
kind, steps = sys.argv[1], int(sys.argv[2])
disturbed = outside = 0
happened = None
batches = iter(DataLoader(Rows(), 4, collate_fn=collate))
def look():
    "Whether what torch finds is torch's own."
    loader = sys.modules["torch.utils.data.dataloader"]
    return [hasattr(torch.autograd.backward, "__wrapped__"), "_compiled_call_impl" in vars(net),
            hasattr(loader._BaseDataLoaderIter.__next__, "__wrapped__")]
seen = {True: set(), False: set()}
step = 0
while step < steps:
    x = timed("data", next, batches)
    act = kind if S.hooks_out and step > steps // 2 and happened is None else None
    seen[S.hooks_out].add(tuple(look()))
    outside += S.hooks_out
    loss = timed("forward", lambda: net(x).pow(2).mean())
    if act == "evaluate":
        net.eval()
        with torch.no_grad():
            for _ in range(400): net(x)
        net.train()
    if act == "raise":
        with contextlib.suppress(RuntimeError): net(torch.ones(1, 5))
    if act == "nan" or (kind == "nan" and happened is not None): loss = loss * float("nan")
    timed("backward", loss.backward)
    if act == "save": torch.save(net.state_dict(), os.devnull)
    if act == "another": torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1).step()
    if act == "fork":
        child = os.fork()
        if not child: os._exit(int(not hasattr(torch.autograd.backward, "__wrapped__")))
        assert os.waitpid(child, 0)[1] == 0
    if act == "closure":
        def closure():
            lbfgs.zero_grad()
            loss = (net(x) - target).pow(2).mean()
            loss.backward()
            return loss
        target = torch.randn(4, 8)
        never = {"tolerance_grad": -1.0, "tolerance_change": -1.0}
        lbfgs = torch.optim.LBFGS(net.parameters(), 1e-4, max_iter=300, max_eval=300, **never)
        lbfgs.step(closure)
    if act == "mode": optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(80e-6)
    if act: happened = step, time.time_ns()
    step += 1
sides = [sorted(map(list, seen[True])), sorted(map(list, seen[False]))]
print(json.dumps([outside, sides, spent, happened]))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("sampling") / "short.py"
    path.write_text(SCRIPT)
    return path


def run(script, kind, steps=STEPS):
    outcome = run_script([str(script), kind, str(steps)])
    assert (outcome.exit_code, outcome.stderr, outcome.agent_errors) == (0, "", "")
    records = outcome.guest.steps
    assert all(sum(one[f"{name}_ns"] for name in wire.PHASES) == one["wall_ns"] for one in records)
    ends = [one["step"] for one in records]
    assert [end - one["n_steps"] for end, one in zip(ends, records, strict=True)] == [
        -1,
        *ends[:-1],
    ]
    return outcome


@pytest.fixture(scope="module")
def plain(script):
    return run(script, "plain")


def test_hooks_are_out_for_most_steps_and_torch_is_as_it_was(plain):
    outside, (out, within), _, _ = json.loads(plain.stdout)
    assert outside > STEPS / 2
    assert [False, False, False] in out
    assert [True, True, True] in within


def test_counts_are_exact(plain):
    records = plain.guest.steps
    assert plain.guest.n_steps == STEPS
    assert sum(one["samples"] for one in records) == BATCH * STEPS
    assert (
        sum(one["micro_batches"] for one in records)
        == sum(one["optimizer_steps"] for one in records)
        == STEPS
    )


def test_records_say_what_was_measured(plain):
    kinds = {one["flags"] & (wire.F_WINDOW | wire.F_ESTIMATED) for one in plain.guest.steps}
    assert kinds == {0, wire.F_WINDOW, wire.F_ESTIMATED}


def test_estimated_phases_are_those_of_the_script(plain):
    spent = json.loads(plain.stdout)[2]
    for name, seconds in spent.items():
        if name != "other":  # the rest of the loop is in it, too
            assert plain.guest.phase_ms(name) == pytest.approx(
                1e3 * seconds, rel=0.25
            )  # of a busy machine


def test_own_cost_is_told_with_its_interval(plain):
    told = plain.guest.of_type("own_cost")[-1]
    assert told["method"] == "windows"
    assert told["low_us"] <= told["cost_us"] <= told["high_us"]
    assert told["measured_steps"] + told["counted_steps"] <= STEPS
    assert 0 < told["thread_share"] < 0.5  # of a core


def test_a_loss_that_stays_nan_is_told_soon(script):
    outcome = run(script, "nan")
    step, t_ns = json.loads(outcome.stdout)[3]
    told = outcome.guest.of_type("nonfinite")[0]
    assert told["step"] >= step
    assert told["step"] - told["unread"] <= step
    assert told["t_ns"] - t_ns < 2e9  # 0.3 s on a machine of one's own


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        ("evaluate", wire.F_EVAL),
        ("save", wire.F_CHECKPOINT),
        ("raise", 0),
        ("another", 0),
        ("fork", 0),
    ],
)
def test_nothing_is_lost_where_something_comes_out_of_turn(script, kind, flag):
    outcome = run(script, kind)
    step = json.loads(outcome.stdout)[3][0]
    assert outcome.guest.n_steps == STEPS + (kind == "another")
    assert sum(one["optimizer_steps"] for one in outcome.guest.steps) == STEPS + (kind == "another")
    if flag:
        flagged = [
            one for one in outcome.guest.steps if one["flags"] & flag and one["step"] >= STEPS // 2
        ]
        assert flagged[0]["step"] in (step - 1, step, step + 1)
        assert flagged[0]["n_steps"] == 1


def test_a_long_update_between_windows_keeps_every_phase(script):
    """LBFGS in one call: the hooks come in amid it, its passes are told by the weights, and its own
    update began unseen.
    """
    outcome = run(script, "closure")
    step = json.loads(outcome.stdout)[3][0]
    inferred = [one for one in outcome.guest.steps if one["flags"] & wire.F_NO_OPT_EVENT]
    assert inferred, "the hooks came in and saw some of the 300 passes"
    assert all(one["step"] >= step for one in inferred)
    assert not any(one["flags"] & wire.F_ESTIMATED for one in inferred)
    assert sum(one["optimizer_steps"] for one in outcome.guest.steps) == STEPS


@pytest.mark.parametrize(
    ("late_ns", "own_thread", "cpu_ns"),
    [(900, True, 6000), (1100, True, -1), (900, False, -1)],
    ids=["at its end", "after a rollout", "by the other thread"],
)
def test_a_rollouts_cpu_time_is_no_earlier_records(monkeypatch, late_ns, own_thread, cpu_ns):
    """A record of fast steps may be sent only when the step after them has ended."""
    fold = steps.Fold()
    fold.probing, fold.began_ns, fold.end_ns, fold.cpu_base_ns = False, 0, 8000, 1000
    monkeypatch.setattr(steps, "fold", fold)
    monkeypatch.setattr(steps, "monotonic_ns", lambda: fold.end_ns + late_ns)
    monkeypatch.setattr(steps, "thread_time_ns", lambda: 7000)
    assert steps._cpu_ns(own_thread) == cpu_ns
    assert fold.cpu_base_ns == (7000 if cpu_ns >= 0 else -1)


def test_records_of_steps_with_many_calls_are_probed_one_in_four(monkeypatch):
    """Reading the CPU time twice a call is half of what a call costs."""
    monkeypatch.setattr(steps, "thread_time_ns", lambda: 7)
    fold = steps.Fold()
    probed = []
    for calls in (2, 200, 200, 200, 200, 200, 200, 2):
        fold.n_steps = 1
        probed.append({fold.probe() for _ in range(calls)} == {7})
        fold.choose_probing()
    assert probed == [True, True, False, False, False, True, False, False]


def test_records_of_many_steps_are_not_probed():
    fold = steps.Fold()
    fold.n_steps = steps.MAX_PROBED_STEPS + 1
    fold.choose_probing()
    assert fold.probe() == 0 and fold.probes == 0


@pytest.mark.parametrize("lost", [0, 100, 150])
def test_a_core_that_is_lost_in_a_hook_is_no_cost_of_the_hook(lost):
    """Beside workers that use all cores more than half of the steps lose theirs in a call of
    ours.
    """
    sums = own_cost.CostSums()
    sums.hooked_steps, sums.hooked_wall_ns = 256, 256 * 20_000_000
    sums.hook_walls.extend([200_000 + 4_000_000 * (step < lost) for step in range(256)])
    assert 200.0 <= sums.summary()["cost_us"] <= 400.0
