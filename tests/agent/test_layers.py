"""Layers of real trainings: times by module in single steps, and nothing of ours left
in the model.
"""

import json

import pytest
from agent_support import run_plain, run_script

pytestmark = pytest.mark.e2e

SCRIPT = """
import eager, copy, io, pickle, sys, torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(8 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        x = self.first(x)
        for index, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if index == 1 else block(x)
        return self.head(x)


model = Model()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(30):
    loss = model(torch.randn(64, 16)).pow(2).mean()
    copied = copy.deepcopy(model)
    assert b"LayerSlot" not in pickle.dumps(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
def compiled(m):
    return type(m.__dict__.get("_compiled_call_impl")).__name__.lower()
def hooked(m):
    return m._forward_hooks or m._backward_hooks or m._forward_pre_hooks
left = [m for m in model.modules() if "layer" in compiled(m)]
hooks = [m for m in model.modules() if hooked(m)]
print(repr(loss.item()), left, hooks, len(list(copied.modules())))
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    script = tmp_path_factory.mktemp("layers") / "train.py"
    script.write_text(SCRIPT)
    found = run_script([str(script)], GPUTOP_LAYERS="1")
    assert found.exit_code == 0, found.stderr
    assert found.agent_errors == ""
    assert found.stdout == run_plain([str(script)]).stdout
    return found.guest


def test_single_steps_are_watched_and_every_column_has_every_layer(watched):
    looks = [event for event in watched.of_type("layers") if "forward_us" in event]
    assert [look["step"] for look in looks] == [12, 14, 16]
    (table,) = watched.of_type("layer_table")
    for look in looks:
        for column in ("forward_us", "backward_us", "calls", "gradient_bytes"):
            assert len(look[column]) == table["count"], column
        assert sum(look["forward_us"]) / 1e3 > 0 and look["forward_ms"] > 0


def test_parts_add_up_to_forward_and_backward(watched):
    """In one of the steps layers have a good part of each phase: others may lose their core."""
    looks = [event for event in watched.of_type("layers") if "forward_us" in event]
    for look in looks:
        parts_ms = sum(look["forward_us"] + look["backward_us"]) / 1e3
        parts_ms += look["outside_forward_ms"] + look["outside_backward_ms"] + look["hook_ms"]
        assert parts_ms == pytest.approx(look["forward_ms"] + look["backward_ms"], rel=0.01)
    for way in ("forward", "backward"):
        shares = [sum(look[f"{way}_us"]) / 1e3 / look[f"{way}_ms"] for look in looks]
        assert 0.3 < max(shares) < 1, (way, shares)


def test_each_layer_has_its_calls_bytes_and_operations(watched):
    (table,) = watched.of_type("layer_table")
    paths = [row["path"] for row in table["rows"]]
    last = [event for event in watched.of_type("layers") if "forward_us" in event][-1]

    def of(column, path):
        return last[column][paths.index(path)]

    assert of("calls", "") == of("calls", "blocks.0.up") == of("calls", "blocks.1.up") == 1
    assert of("activation_bytes", "blocks.0.up") == 64 * 512 * 4
    assert of("gradient_bytes", "head") == (64 * 4 + 4) * 4
    assert of("optimizer_bytes", "head") == 2 * (64 * 4 + 4) * 4
    recomputed = {paths[index] for index in last["recomputed"]}
    assert recomputed == {"blocks.1", "blocks.1.up", "blocks.1.down"}
    for path in ("first", "blocks.0.up", "blocks.2.down", "head"):
        assert of("forward_us", path) > 0 and of("backward_us", path) > 0, path
    (counted,) = [event for event in watched.of_type("layers") if "flops" in event]
    once = 2 * 64 * 64 * 512
    assert counted["flops"][paths.index("blocks.0.up")] == 3 * once
    assert counted["flops"][paths.index("blocks.1.up")] == 4 * once


HOOKED = """
import eager, time, torch
from torch import nn

torch.manual_seed(0)
called = []


class Gathers(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        x = self.inner(x)
        x.register_hook(lambda gradient: time.sleep(0.02))
        x.register_hook(lambda gradient: called.append(gradient.shape))
        return x


model = nn.Sequential(nn.Linear(8, 8), Gathers(), nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(20):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item(), len(called))
"""


def test_a_hook_on_a_result_is_the_time_of_the_operation_that_gave_it(tmp_path):
    """FSDP gathers weights in such hooks; they are called once each, in their order."""
    script = tmp_path / "train.py"
    script.write_text(HOOKED)
    found = run_script([str(script)], GPUTOP_LAYERS="1")
    assert found.exit_code == 0 and found.agent_errors == "", found.stderr
    assert found.stdout == run_plain([str(script)]).stdout
    (table,) = found.guest.of_type("layer_table")
    paths = [row["path"] for row in table["rows"]]
    for look in (event for event in found.guest.of_type("layers") if "forward_us" in event):
        backward_ms = {path: us / 1e3 for path, us in zip(paths, look["backward_us"], strict=True)}
        assert backward_ms.pop("1.inner") > 19
        assert max(backward_ms.values()) < 10


COMPILED = """
import torch
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.utils import counters

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Broken(Block):
    def forward(self, x):
        x = self.linear(x)
        torch._dynamo.graph_break()
        return x.relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.broken = nn.Linear(8, 16), Block(), Broken()

    def forward(self, x):
        return self.broken(self.inner(self.first(x)))


whole = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
parts = Model()
parts.inner.compile(backend="eager", fullgraph=True)
parts.broken.compile(backend="eager")
called = torch.compile(whole, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.SGD([*whole.parameters(), *parts.parameters()], 1e-3)
for step in range(24):
    batch = torch.randn(4, 8)
    (called(batch).sum() + parts(batch).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
for name in ("stats", "frames", "graph_break", "unimplemented", "recompiles"):
    print(name, dict(counters[name]))
for forward in (Block.forward, Broken.forward):
    entries = _debug_get_cache_entry_list(forward.__code__)
    print(forward.__qualname__, [len(str(one.guard_manager).splitlines()) for one in entries])
"""


def test_compiled_graphs_are_the_same_and_timed_as_one_layer(tmp_path):
    """Graphs, frames, recompilations and guards of a model, of parts and of a broken graph."""
    script = tmp_path / "train.py"
    script.write_text(COMPILED)
    found = run_script([str(script)], GPUTOP_LAYERS="1")
    assert found.exit_code == 0, found.stderr
    assert found.agent_errors == ""
    bare = run_plain([str(script)])
    assert "'unique_graphs': 4" in bare.stdout and "Block.forward [" in bare.stdout, bare.stderr
    assert found.stdout == bare.stdout
    look = [event for event in found.guest.of_type("layers") if "forward_us" in event][-1]
    (table,) = found.guest.of_type("layer_table")
    called = {row["path"] for row, calls in zip(table["rows"], look["calls"], strict=True) if calls}
    assert called == {"OptimizedModule", "Model", "Model.first", "Model.inner", "Model.broken"}
    assert any(row.get("compiled") for row in table["rows"])
    assert json.dumps(look["recomputed"]) == "[]"
