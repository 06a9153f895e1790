"""Makes one function of the guest raise and trains. ``faulty_guest.py OUT_DIR``; a script, not a
test module.

For every function of the package that a training calls, a child is forked that breaks it, installs
the guest, trains, and leaves what it printed and how it ended in ``OUT_DIR/NAME``.
``OUT_DIR/reference`` is the same without a fault and without the guest. Which ones are called is
told by a child with a profiler; one that is not called cannot raise.
"""

import atexit
import contextlib
import copy
import gc
import importlib
import io
import json
import os
import pkgutil
import sys
import threading
import traceback
import types
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401
import torch.utils.data
from torch import nn

import gputop_agent

#: They hold nothing but a ``try`` around the rest, or are what an ``except`` block calls; see
#: test_never_harm.
THIN = {
    "runtime.guard.failed",
    "runtime.guard.around.wrapper",
    "watchers.loaders.loader_places.noting.wrapper",
    "watchers.looks.built_places._noting.wrapper",
    "hooks.forward.CallSlot.__call__",
    "hooks.optimizer.before_step",
    "hooks.optimizer.after_step",
    "hooks.dynamo.compile_begins",
    "hooks.dynamo.compile_ended",
    "watchers.exceptions._chain.excepthook",
    "injection.process.at_exit",
    "injection.process.after_fork",
    "injection.process.begin_anew",
    "runtime.interrupts.pass_on",  # is called by each ``except`` block
    "runtime.guard.vanish",
    "hooks.forward._watch_pickling.__reduce_ex__",
    "hooks.startup._timed.wrapper",
    "timing.startup.parameter_made",
}


def modules():
    found = [gputop_agent]
    for info in pkgutil.walk_packages(gputop_agent.__path__, "gputop_agent."):
        if info.name != "gputop_agent.inject.sitecustomize":  # a program of its own
            found.append(importlib.import_module(info.name))
    return found


def functions():
    """``{dotted name: (function to change, path of nested code names)}``."""
    found = {}
    for module in modules():
        short = module.__name__.partition(".")[2]
        for owner, value in list(vars(module).items()):
            if getattr(value, "__module__", None) != module.__name__:
                continue
            members = vars(value).items() if isinstance(value, type) else [(None, value)]
            for name, member in members:
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if isinstance(function, types.FunctionType):
                    dotted = ".".join(filter(None, (short, owner, name)))
                    found[dotted] = (function, ())
                    for nested in function.__code__.co_consts:
                        if isinstance(nested, types.CodeType) and not nested.co_name.startswith(
                            "<"
                        ):
                            found[f"{dotted}.{nested.co_name}"] = (function, (nested.co_name,))
    return {name: value for name, value in found.items() if name not in THIN}


def raising(code):
    """Code with the same free variables that raises when it is called."""
    names = code.co_freevars
    lines = ["def outer():"]
    lines += [f"    {name} = None" for name in names]
    lines += ["    def inner(*args, **kwargs):"]
    lines += [f"        if args is None: {name}" for name in names]
    lines += ["        raise RuntimeError('fault')", "    return inner"]
    space = {}
    exec("\n".join(lines), space)
    return space["outer"]().__code__.replace(co_filename=code.co_filename)


def break_it(function, path):
    code = function.__code__
    if not path:
        function.__code__ = raising(code)
        return
    constants = [
        raising(part) if isinstance(part, types.CodeType) and part.co_name == path[0] else part
        for part in code.co_consts
    ]
    function.__code__ = code.replace(co_consts=tuple(constants))


class Finder:
    def __init__(self):
        self.targets = {}


def train():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loader = torch.utils.data.DataLoader(torch.randn(56, 4), 4)
    for x in loader:
        loss = net(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(repr(loss.item()), repr(norm.item()))
    net.eval()
    with torch.no_grad():
        print(repr(net(next(iter(loader))).sum().item()))
    net.train()
    torch.save(net.state_dict(), io.BytesIO())
    twin = copy.deepcopy(net)
    print(repr(twin(torch.ones(1, 4)).sum().item()))
    print(torch.autograd.grad(net(torch.ones(1, 4)).sum(), list(net.parameters()))[0].sum().item())
    with contextlib.suppress(RuntimeError):
        net(torch.ones(1, 5))
    gc.collect()
    return train_short_steps(net)


def train_short_steps(net):
    """Plain steps until windows open and shut, then one that is not plain. Returns how many were
    only counted.
    """
    counted, optimizer = 0, torch.optim.SGD(net.parameters(), 1e-3)
    for step, x in enumerate(torch.utils.data.DataLoader(torch.randn(200, 4), 4)):
        loss = net(x).pow(2).mean()
        loss.backward()
        if step == 33:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        guest = sys.modules.get("gputop_agent.runtime.session")
        counted += bool(guest and guest.session.hooks_out)
    print(repr(loss.item()))
    return counted


class Calls:
    """The functions of the package that are called in this process from now on, in any thread."""

    def __init__(self):
        self.seen = set()
        threading.setprofile(self.note)
        sys.setprofile(self.note)

    def note(self, frame, event, _):
        if event == "call":
            self.seen.add(key_of(frame.f_code))

    def write(self, path):
        sys.setprofile(None)
        threading.setprofile(None)
        path.write_text(json.dumps(sorted(self.seen)))


def key_of(code):
    """What stays when the guest gives a function's code another file name."""
    return code.co_name, code.co_firstlineno


def code_of(function, path):
    if not path:
        return function.__code__
    parts = (part for part in function.__code__.co_consts if isinstance(part, types.CodeType))
    return next(part for part in parts if part.co_name == path[0])


def look_early():
    """Let the rare looks and some windows fall into these few steps."""
    from gputop_agent import wire
    from gputop_agent.timing import sampling, update_pattern
    from gputop_agent.watchers.looks import checkup
    from gputop_agent.watchers.memory import growth

    sampling.FIRST_STEP = sampling.CALM_STEPS = 0
    sampling.ASK_EVERY = update_pattern.PERIODS = 2
    sampling.SHORT_NS = sampling.LONG_NS = 1_000_000_000
    wire.BOOK_NS = 1_000_000
    checkup.current.next_step = growth.FIRST_STEP = growth.RISE_BYTES = 0


def child(folder, name, fault):
    for descriptor, suffix in ((1, "out"), (2, "err")):
        target = os.open(folder / f"{name}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, descriptor)
    status = 0
    calls = Calls() if name == "calls" else None
    try:
        if fault is not None:
            break_it(*fault)
        if name != "reference":
            from gputop_agent.injection import core

            with contextlib.suppress(Exception):  # as the injected finder does
                core.install(torch, Finder())
                look_early()
        counted = train()
        if name == "no_fault":
            (folder / "counted").write_text(str(counted))
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    atexit._run_exitfuncs()
    if calls is not None:
        calls.write(folder / "calls.json")
    sys.stderr.flush()
    os._exit(status)


def main():
    folder = Path(sys.argv[1])
    with contextlib.redirect_stdout(io.StringIO()):
        train()  # what torch imports when it is first used, once for all children
    gc.freeze()  # a child's collection then copies no page of the parent's objects
    run(folder, {"reference": None, "no_fault": None, "calls": None})
    called = {tuple(key) for key in json.loads((folder / "calls.json").read_text())}
    run(
        folder,
        {name: fault for name, fault in functions().items() if key_of(code_of(*fault)) in called},
    )


def run(folder, jobs):
    """Two children at a time."""
    running = {}
    for name, fault in jobs.items():
        pid = os.fork()
        if pid == 0:
            child(folder, name, fault)
        running[pid] = name
        if len(running) >= 2:
            wait_one(folder, running)
    while running:
        wait_one(folder, running)


def wait_one(folder, running):
    pid, status = os.wait()
    (folder / f"{running.pop(pid)}.status").write_text(str(status))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
