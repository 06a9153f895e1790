"""What the instruction that a stack sample fell into is taken for."""

import dis
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gputop_agent.runtime.session import session
from gputop_agent.timing import tensor_work
from gputop_agent.timing.step_state import open_step

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="instructions have no columns before"
)


@pytest.fixture(autouse=True)
def a_training_with_modules(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(session, "roots", [object()])


def seen(tmp_path, statement):
    """The label of a frame that stands in the last operation of a statement of user code."""
    path = tmp_path / "train.py"
    path.write_text(f"def step(u, v, p, out):\n    x = (\n      {statement}\n    )\n")
    scope = {"torch": torch, "time": time, "save": torch.save, "np": np}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    code = scope["step"].__code__
    instructions = list(dis.get_instructions(code))
    end = next(
        i for i, one in enumerate(instructions) if one.opname == "STORE_FAST" and one.argval == "x"
    )
    return tensor_work.label(
        SimpleNamespace(f_code=code, f_lasti=instructions[end - 1].offset, f_globals=scope)
    )


LOSS = [
    "u @ v.T",
    "-(u.diagonal() + 1e-9).log().mean()",
    "torch.stack(\n        [u, v])",
    "u[3:]",
    "save(p)",
    "torch.as_tensor(np.abs(u)) @ v",
]
HOST = [
    "time.sleep(1)",
    "out.tolist()",
    "out.item()",
    "out.append(u)",
    "out.split(',')",
    "print(u)",
    "sum(out)",
    "u & np.pad(v, 1)[1:]",
]


@pytest.mark.parametrize("statement", LOSS)
def test_operators_and_torchs_calls_are_work_where_a_loss_is_computed(
    tmp_path, monkeypatch, statement
):
    monkeypatch.setattr(open_step, "gap_phase", 9)
    assert seen(tmp_path, statement).startswith("torch/")
    monkeypatch.setattr(open_step, "gap_phase", -1)
    assert seen(tmp_path, statement) == ""


@pytest.mark.parametrize("statement", HOST)
def test_what_blocks_or_handles_python_objects_is_host_code_anywhere(
    tmp_path, monkeypatch, statement
):
    monkeypatch.setattr(open_step, "gap_phase", 9)
    assert seen(tmp_path, statement) == ""


@pytest.mark.parametrize("statement", ["p.mul_(0.9).add_(u)", "p - 0.1 * p.grad"])
def test_updates_are_work_anywhere(tmp_path, statement):
    assert seen(tmp_path, statement).startswith("torch/")


@pytest.mark.parametrize(
    ("grads", "backwards", "pending", "is_work"),
    [(1, 0, False, True), (1, 1, False, False), (1, 0, True, False), (0, 0, False, False)],
    ids=["by hand", "of a penalty", "after the update", "before"],
)
def test_what_is_done_with_gradients_that_were_asked_for_is_work(
    tmp_path, monkeypatch, grads, backwards, pending, is_work
):
    state = {"gap_phase": -1, "grads": grads, "backwards": backwards, "pending": pending}
    for name, value in state.items():
        monkeypatch.setattr(open_step, name, value)
    assert bool(seen(tmp_path, "torch.exp(u)")) is is_work


def test_a_training_without_modules_computes_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "roots", [])
    assert seen(tmp_path, "u @ v") == "torch/_C operator"


PACKAGE = "import torch\n\n\ndef step(u, v):\n    x = u @ v\n    return x\n"


@pytest.mark.parametrize(
    ("package", "imports", "gap", "label"),
    [
        ("linear_operator", True, 9, "torch/_C operator"),
        ("linear_operator", True, -1, ""),
        ("sklearn", False, 9, ""),
        ("torchmetrics", True, 9, ""),
    ],
    ids=["of a loss", "elsewhere", "of arrays", "of a metric"],
)
def test_a_packages_operators_are_work_where_it_computes_a_loss(
    tmp_path, monkeypatch, package, imports, gap, label
):
    path = tmp_path / "algebra.py"
    path.write_text(PACKAGE if imports else PACKAGE.replace("import torch", ""))
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    code = scope["step"].__code__
    operator = next(i for i in dis.get_instructions(code) if i.opname == "BINARY_OP")
    monkeypatch.setattr(open_step, "gap_phase", gap)
    frame = SimpleNamespace(f_code=code, f_lasti=operator.offset, f_globals=scope)
    assert tensor_work.label_in_package(frame, package) == label
