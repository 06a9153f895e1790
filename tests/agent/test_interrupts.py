"""What a signal's handler raises in the middle of our code, and what another thread sends, is the
user's.
"""

import ast
import functools
import os
import signal

import pytest
from agent_support import AGENT_DIR, run_script

from gputop_agent import wire
from gputop_agent.runtime import interrupts

ALARMS = 600
SCRIPT = f"""
import ctypes, random, signal, sys, threading, time, eager, torch, traceback
class Late(Exception): pass
class Lost(OSError):
    def __init__(self): super().__init__("lost")
net = torch.nn.Linear(4, 4); opt = torch.optim.SGD(net.parameters(), 1e-6)
data = torch.utils.data.DataLoader(torch.ones(4000, 4), 4)
kinds = [Late, TimeoutError, KeyError, Lost, BlockingIOError]
raised, caught, ours, steps = 0, 0, [], 0
def handler(number, frame):
    global raised
    raised += 1
    raise kinds[raised % len(kinds)]()
def run(batches):
    global steps
    for x in batches:
        net(x).sum().backward(); opt.step(); opt.zero_grad(); steps += 1
signal.signal(signal.SIGALRM, handler)
random.seed(1)
run(data)
for i in range({ALARMS}):
    torch.set_grad_enabled(True)
    batches = iter(data)
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-4, 3e-3))
        run(batches)
        run(data)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except tuple(kinds):
        caught += 1
        trace = traceback.format_exc()
        if "gputop_agent" in trace: ours.append(trace)
    if i % 60 == 0: torch.set_grad_enabled(True); run(data)
torch.set_grad_enabled(True)
sent, arrived, main = 0, 0, threading.get_ident()
def send():
    for _ in range(40):
        time.sleep(random.uniform(1e-3, 1e-2))
        go.wait(); go.clear()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Late))
go = threading.Event()
threading.Thread(target=send, daemon=True).start()
for _ in range(40):
    torch.set_grad_enabled(True)
    try:
        batches = iter(data); go.set(); began = time.monotonic()
        while time.monotonic() - began < 5: run(batches); batches = iter(data)
    except Late: arrived += 1
print(raised == caught, caught > {ALARMS} * 0.9, arrived, len(ours) < caught / 50)
print(steps, file=sys.stderr)
"""


@pytest.mark.e2e
def test_no_timeout_of_the_users_is_lost(tmp_path):
    script = tmp_path / "alarms.py"
    script.write_text(SCRIPT)
    outcome = run_script([str(script)])
    assert (outcome.exit_code, outcome.agent_errors) == (0, "")
    assert outcome.stdout == "True True 40 True\n"
    guest, steps = outcome.guest, int(outcome.stderr)
    assert abs(guest.n_steps - steps) <= 2 * (
        ALARMS + 40
    )  # a step that was broken off may count or not
    for record in guest.steps:
        assert record["wall_ns"] == sum(record[f"{phase}_ns"] for phase in wire.PHASES)
    assert not guest.of_type("agent_error") and guest.of_type("goodbye")[0]["errors"] == 0


class Handler:
    """Ways to handle a signal."""

    def method(self, number, frame):
        raise TimeoutError("method")

    def __call__(self, *_):
        raise TimeoutError("object")


def function(number, frame):
    raise TimeoutError("function")


def resetting(number, frame):
    signal.signal(number, signal.SIG_DFL)
    del number, frame
    deeper()


def deeper():
    raise OSError("from a function of the handler's")


@pytest.mark.parametrize(
    "handler",
    [
        Handler().method,
        Handler(),
        function,
        resetting,
        functools.partial(Handler().method),
        lambda s, f: deeper(),
    ],
)
def test_what_a_handler_raises_is_told_from_what_is_ours(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(OSError) as caught:  # TimeoutError is one
            signal.raise_signal(signal.SIGUSR1)
        expected = (
            handler is not resetting
        )  # neither installed any more nor with its frame in a variable
        assert interrupts.is_users(caught.value) is expected
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_errors_of_torch_and_python_are_not_the_users():
    import json

    import torch

    for wrong in (
        lambda: json.loads("{"),
        lambda: torch.ones(2) @ torch.ones(3),
        lambda: os.stat("/nowhere"),
        lambda: {}["x"],
        lambda: next(iter(())),
        lambda: torch.nn.Module().missing,
    ):
        try:
            wrong()
        except Exception as error:
            assert not interrupts.is_users(error), error


def test_every_except_of_the_guest_lets_pass_what_is_not_its_own():
    missing = []
    for path in sorted(AGENT_DIR.rglob("*.py")):
        relative = path.relative_to(AGENT_DIR)
        if "inject" in relative.parts or relative.name in ("interrupts.py", "session.py"):
            continue
        for function_node in (
            n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)
        ):
            for handler in (n for n in ast.walk(function_node) if isinstance(n, ast.ExceptHandler)):
                if not _passes(handler):
                    missing.append(f"{relative}:{handler.lineno}")
    # the process ends: nobody is left to catch anything
    allowed = {"injection/process.py", "watchers/exceptions.py"}
    assert not [place for place in missing if place.partition(":")[0] not in allowed], missing


def _passes(handler: ast.ExceptHandler) -> bool:
    if isinstance(handler.type, ast.Name) and handler.type.id == "BaseException":
        return isinstance(handler.body[-1], ast.Raise)
    first = handler.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Call):
        return False
    called = first.value.func
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in (
        "failed",
        "pass_on",
    )


def test_nothing_of_ours_is_called_where_python_drops_exceptions():
    """Callbacks of weak references and finalizers: a handler's exception would be printed there,
    and lost.
    """
    for path in sorted(AGENT_DIR.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.FunctionDef) and node.name == "__del__"), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if (
                    node.func.attr in ("ref", "finalize", "proxy")
                    and getattr(node.func.value, "id", "") == "weakref"
                ):
                    assert len(node.args) == 1, path
                assert not node.func.attr.startswith("WeakKey") and not node.func.attr.startswith(
                    "WeakValue"
                ), path


def test_a_timeout_that_comes_while_another_error_is_looked_at_is_the_one_that_passes(monkeypatch):
    """An error of ours was raised again in its place, and the user's timeout was lost."""

    class Late(OSError):
        pass

    def handler(number, frame):
        raise Late

    was = signal.signal(signal.SIGUSR2, handler)
    known = interrupts.is_users
    monkeypatch.setattr(
        interrupts, "is_users", lambda error: os.kill(os.getpid(), signal.SIGUSR2) or known(error)
    )
    try:
        with pytest.raises(Late) as raised:
            try:
                os.stat("/no/such/file")
            except OSError:
                interrupts.pass_on()
    finally:
        signal.signal(signal.SIGUSR2, was)
    assert raised.value.__suppress_context__, "nothing is told of what we looked at"
