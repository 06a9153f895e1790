"""What a script can see of us: its tracebacks, pickles, modes, threads and numbers are those
without us.
"""

import pytest
from agent_support import run_plain, run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import copy, inspect, io, json, os, pickle, pickletools, sys, threading, traceback, warnings, torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
told = {}
calls, dispatched = {}, []
class Count(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__qualname__", str(function))
        calls[name] = calls.get(name, 0) + 1
        return function(*args, **(kwargs or {}))
class Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        dispatched.append(str(function))
        return function(*args, **(kwargs or {}))
class Keeps(nn.Linear):
    def __getstate__(self): return dict(self.__dict__)
class Live(nn.Linear):
    def __getstate__(self): return self.__dict__
class Model(nn.Module):
    fault = None
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    def forward(self, x):
        if self.fault: raise self.fault
        warnings.warn("mind", stacklevel=2)
        return self.layers(x)
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 200
    def __getitem__(self, i):
        if i == self.bad: raise IndexError("row")
        return torch.ones(4)
    bad = -1
torch.manual_seed(0)
model, keeps, live, rows = Model(), Keeps(4, 4), Live(4, 4), Rows()
optimizer = torch.optim.AdamW([p for m in (model, keeps, live) for p in m.parameters()], 1e-3)
def step(x):
    loss = live(keeps(model(x))).pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); optimizer.zero_grad()
def train():
    for x in torch.utils.data.DataLoader(rows, 4): step(x)
def trace(function):
    try: function()
    except Exception: return traceback.format_exc()
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    train()
    told["warned"] = sorted({"%s:%d" % (os.path.basename(w.filename), w.lineno) for w in given})
    with Count(): train()
    with Dispatched(): train()
    for _ in range(2):
        told["pickles"] = []
        for module in (model, keeps, live):
            data = pickle.dumps(module)
            # storages hold their addresses, of more or fewer digits
            codes = [(code.name, value) for code, value, _ in pickletools.genops(data)
                     if not (isinstance(value, bytes) or str(value).isdigit())]
            told["pickles"].append([len(codes), [code for code in codes if code[1]]])
            told["pickles"].append(sorted(vars(copy.deepcopy(module))))
        train()
    told["calls"], told["dispatched"] = calls, len(dispatched)
    model.fault = ValueError("bad batch")
    told["forward"] = trace(lambda: model(torch.ones(1, 4)))
    model.fault = None
    told["backward"] = trace(lambda: torch.autograd.backward(torch.ones(3, requires_grad=True) * 2))
    told["grad"] = trace(lambda: torch.autograd.grad(torch.ones(3), [torch.ones(1)]))
    rows.bad = 150
    told["data"] = trace(train)
    told["clip"] = trace(lambda: nn.utils.clip_grad_norm_(model.parameters(), "wrong"))
    def closure():
        model.fault = KeyError("inside")
        return model(torch.ones(1, 4)).sum()
    def chained():
        try: optimizer.step(closure)
        except KeyError as error: raise RuntimeError("after") from error
    told["closure"] = trace(chained)
    told["threads"] = [threading.active_count(), [t.name for t in threading.enumerate()]]
    told["numbers"] = [os.open("/dev/null", 0) for _ in range(4)]
json.dump(told, open(sys.argv[1], "w"))
class Lives:
    def __init__(self): self.optimizer = torch.optim.SGD(model.parameters(), 0.1)
    def __del__(self): pass
forever = Lives(); forever.me = forever; sys.forever = forever
import builtins; builtins.forever = optimizer
warnings.simplefilter("ignore")
for kind in range(2):
    child = os.fork()
    if not child:
        model.fault = None; step(torch.ones(2, 4)); sys.exit(0)
    os.waitpid(child, 0)
"""
FAILING = "1 / 0\n"


def told(folder, run, name):
    import json

    script, found = folder / "seen.py", folder / f"{name}.json"
    script.write_text(SCRIPT)
    outcome = run([str(script), str(found)])
    assert outcome.stderr == ""  # also at the end of the process and of its children
    return json.loads(found.read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seen")
    return told(folder, run_plain, "without"), told(folder, run_script, "with")


@pytest.mark.parametrize("kind", ["forward", "backward", "grad", "data", "clip", "closure"])
def test_tracebacks_show_nothing_of_ours(runs, kind):
    without, with_us = (run[kind] for run in runs)
    assert "gputop" not in with_us
    assert without.count("File ") == with_us.count("File ") > 0
    places = [
        [line for line in text.splitlines() if "File " in line and "module.py" not in line]
        for text in runs_of(runs, kind)
    ]
    assert places[0] == places[1]


def runs_of(runs, kind):
    return runs[0][kind], runs[1][kind]


@pytest.mark.parametrize("kind", ["warned", "calls", "dispatched", "pickles", "threads", "numbers"])
def test_what_a_script_sees_is_the_same(runs, kind):
    assert runs[0][kind] == runs[1][kind]


@pytest.mark.parametrize(
    "how", ["import torch", "import importlib; importlib.import_module('torch')"]
)
def test_a_torch_that_cannot_be_imported_fails_as_without_us(tmp_path, how):
    (tmp_path / "torch.py").write_text(FAILING)
    script = tmp_path / "script.py"
    script.write_text(how)
    plain, outcome = run_plain([str(script)]), run_script([str(script)])
    assert plain.returncode == outcome.exit_code == 1
    assert outcome.stderr == plain.stderr and "ZeroDivisionError" in plain.stderr
