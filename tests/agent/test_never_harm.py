"""Whatever fails in the guest, the training's output and exit code are those of a run
without it.
"""

import ast
import re
import subprocess
import sys

import pytest
from agent_support import AGENT_DIR, collecting, guest_env, run_plain, run_script

pytestmark = pytest.mark.e2e

HERE = __file__.rpartition("/")[0]

DYING = """
import gc, os, sys, threading, warnings, eager, torch, torch.utils.data
from torch import nn
gc.collect(); gc.freeze()  # or each fork would copy all of torch when it ends
for kind in sys.argv[2:]:
    pid = os.fork()
    if pid == 0: break
    status = os.waitpid(pid, 0)[1]
    with open(os.path.join(sys.argv[1], kind + ".end"), "w") as file:
        file.write("%d %d" % (pid, status))
else:
    sys.exit()
for descriptor, suffix in ((1, ".out"), (2, ".err")):
    os.dup2(os.open(os.path.join(sys.argv[1], kind + suffix), os.O_WRONLY | os.O_CREAT), descriptor)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if kind == "forward" and self.calls == 4:
            raise ValueError("bad batch")
        return self.layer(x)
class Sad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g):
        warnings.warn("mind the step", stacklevel=2)
        if kind == "backward" and net.calls == 4: raise ValueError("bad gradient")
        return g
class Opt(torch.optim.SGD):
    def step(self, closure=None):
        if kind == "optimizer" and net.calls == 4: raise KeyError("state")
        return super().step(closure)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        if kind == "data" and i == 14: raise IndexError("no such row")
        return torch.ones(4)
net = Net(); opt = Opt(net.parameters(), 1e-3)
def train():
    for x in torch.utils.data.DataLoader(Data(), 4):
        loss = Sad.apply(net(x)).sum()
        loss.backward()
        norm = "wrong" if kind == "clip" and net.calls == 4 else 2.0
        nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm)
        opt.step(); opt.zero_grad()
        if kind == "between" and net.calls == 4:
            try: 1 / 0
            except ZeroDivisionError as error: raise RuntimeError("after the step") from error
        if kind == "interrupt" and net.calls == 4: raise KeyboardInterrupt
        if kind == "exit" and net.calls == 4: sys.exit(7)
if kind == "thread":
    kind = "forward"; t = threading.Thread(target=train); t.start(); t.join()
else:
    train()
print("trained")
"""
KINDS = [
    "forward",
    "backward",
    "optimizer",
    "data",
    "clip",
    "between",
    "interrupt",
    "exit",
    "thread",
    "nothing",
]
REPORTED = {
    "forward": ("ValueError", "forward"),
    "backward": ("ValueError", "backward"),
    "optimizer": ("KeyError", "step"),
    "data": ("IndexError", "__getitem__"),
    "between": ("RuntimeError", "train"),
    "thread": ("ValueError", "forward"),
}


@pytest.fixture(scope="module")
def deaths(tmp_path_factory):
    """The script dying in every way, without and with us: two folders of outputs and the guests by
    process id.
    """
    folder = tmp_path_factory.mktemp("deaths")
    script = folder / "dying.py"
    script.write_text(DYING)
    for name in ("without", "with"):
        (folder / name).mkdir()
    plain = run_plain([str(script), str(folder / "without"), *KINDS], timeout=300)
    outcome = run_script([str(script), str(folder / "with"), *KINDS], timeout=300)
    assert (plain.returncode, outcome.exit_code, outcome.stderr) == (0, 0, plain.stderr)
    assert outcome.agent_errors == ""
    return folder, {guest.of_type("hello")[0]["pid"]: guest for guest in outcome.guests}


@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_the_script_look_as_they_do_without_us(deaths, kind):
    folder, guests = deaths
    pid, status = (folder / "with" / f"{kind}.end").read_text().split()
    assert status == (folder / "without" / f"{kind}.end").read_text().split()[1]
    for suffix in ("out", "err"):
        texts = [(folder / name / f"{kind}.{suffix}").read_text() for name in ("with", "without")]
        assert comparable(texts[0]) == comparable(texts[1])
    events = guests[int(pid)].of_type("exception")
    if kind in REPORTED:
        error, function = REPORTED[kind]
        assert events[0]["class"] == error
        assert re.fullmatch(rf".*dying\.py:\d+ {function}", events[0]["site"])
        assert events[0]["phase"] == {"between": "other", "thread": "forward"}.get(kind, kind)
        assert not any("importlib_bootstrap" in line for line in events[0]["traceback"])
    elif kind != "clip":
        assert not events
    whole = {"nothing": 10, "between": 4, "interrupt": 4, "exit": 4}.get(kind, 3)
    assert guests[int(pid)].n_steps == whole


def comparable(text: str) -> str:
    """Without addresses, and without the frame of torch's in which a module's call slot shows as
    another line.
    """
    text = re.sub(
        r'  File "[^"]*module.py", line \d+, in _wrapped_call_impl\n(    .*\n)+', "", text
    )
    return re.sub(r"0x[0-9a-f]+|Thread-\d+", "?", text)


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """One child for every function of the guest, with that function made to raise."""
    folder = tmp_path_factory.mktemp("faults")
    with collecting() as collector:
        env = guest_env(collector.path, PYTHONPATH=str(AGENT_DIR.parent))
        done = subprocess.run(
            [sys.executable, f"{HERE}/faulty_guest.py", str(folder)],
            env=env,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_function_may_raise(faults):
    names = sorted(path.stem for path in faults.glob("*.status"))
    assert len(names) > 150
    reference = results(faults, "reference")
    assert reference[0] == "0" and reference[2] == "" and len(reference[1].splitlines()) == 18
    assert int((faults / "counted").read_text()) >= 8  # windows opened and shut, too
    harmed = {name: results(faults, name) for name in names if results(faults, name) != reference}
    assert not harmed, "\n".join(
        f"{name}: {status} {err[-600:]}" for name, (status, _, err) in harmed.items()
    )


def results(folder, name: str) -> tuple[str, str, str]:
    return tuple((folder / f"{name}.{part}").read_text() for part in ("status", "out", "err"))  # type: ignore[return-value]


def test_thin_entries_hold_nothing_but_a_try():
    """Those that the test above does not break: what torch, gc and Python call directly."""
    for file, name in (
        ("hooks/optimizer.py", "before_step"),
        ("hooks/optimizer.py", "after_step"),
        ("hooks/dynamo.py", "compile_begins"),
        ("hooks/dynamo.py", "compile_ended"),
        ("runtime/guard.py", "failed"),
        ("injection/process.py", "at_exit"),
        ("injection/process.py", "begin_anew"),
        ("timing/startup.py", "parameter_made"),
    ):
        tree = ast.parse((AGENT_DIR / file).read_text())
        function = next(
            n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name
        )
        body = [n for n in function.body if not isinstance(n, (ast.Expr, ast.Global, ast.Return))]
        assert [type(n) for n in body if not is_guard(n)] == [ast.Try], name


def is_guard(node: ast.stmt) -> bool:
    """``if torch is compiling: return``."""
    return isinstance(node, ast.If) and all(isinstance(part, ast.Return) for part in node.body)


COPIES = """
import copy, io, pickle, sys, eager, torch
from torch import nn
class Keeps(nn.Linear):
    def __getstate__(self): return dict(self.__dict__)
nets = [nn.Linear(4, 4), Keeps(4, 4)]
for net in nets:
    opt = torch.optim.SGD(net.parameters(), 1e-3)
    for _ in range(3): net(torch.ones(2, 4)).sum().backward(); opt.step()
for net in nets:
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for p in twin.parameters(): p.zero_()
    assert twin(torch.ones(1, 4)).abs().sum() == 0, "the copy calls the original"
    data = pickle.dumps(net)
    buffer = io.BytesIO(); torch.save(net, buffer)
    assert b"gputop" not in data and b"gputop" not in buffer.getvalue()
    assert pickle.loads(data)(torch.ones(1, 4)).shape == (1, 4)
    before = sys.getrefcount(net)
import weakref, gc
gc.disable()
gone = [weakref.ref(n) for n in nets]; weights = [weakref.ref(n.weight) for n in nets]
del net, twin, opt, nets, p
assert all(r() is None for r in gone + weights), "a hooked module is freed as soon as it is dropped"
import inspect
assert list(inspect.signature(torch.autograd.backward).parameters)[0] == "tensors"
assert torch.save.__name__ == "save"
assert torch.nn.utils.clip_grad_norm_.__module__ == "torch.nn.utils.clip_grad"
print("ok")
"""


def test_copies_pickles_and_lifetimes(tmp_path):
    script = tmp_path / "copies.py"
    script.write_text(COPIES)
    outcome = run_script([str(script)])
    assert (outcome.stdout, outcome.stderr) == ("ok\n", "")
    assert outcome.agent_errors == ""


INTERRUPTED = """
import gc, signal, threading, time, eager, torch
def steps():
    for _ in range(30):
        net(torch.randn(2, 4)).sum().backward(); opt.step(); opt.zero_grad()
net = torch.nn.Linear(4, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
steps()
gc.disable(); rubbish, caught = [[i] for i in range(1_000_000)], 0
for _ in range(5):
    began = time.perf_counter(); gc.collect(); length = time.perf_counter() - began
    try:
        signal.setitimer(signal.ITIMER_REAL, length / 3)
        gc.collect()
        time.sleep(length)
    except KeyboardInterrupt:
        caught += 1
steps()
print(caught)
"""


def test_a_signal_during_a_collection_is_not_lost(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(
        "import signal; signal.signal(signal.SIGALRM, signal.default_int_handler)" + INTERRUPTED
    )
    outcome = run_script([str(script)])
    assert (outcome.stdout, outcome.stderr, outcome.agent_errors) == ("5\n", "", "")
    (guest,) = outcome.guests
    assert guest.n_steps == 60
    # both collections of each round, though no step ended between them
    pauses = [pause for pause in guest.of_type("gc") if pause["step"] >= 29]
    assert len(pauses) == 10
    rounding_ms = 0.0005 * len(pauses)
    assert (
        sum(pause["duration_ms"] for pause in pauses)
        <= sum(record["gc_ns"] for record in guest.steps) / 1e6 + rounding_ms
    )
