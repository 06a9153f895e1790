"""Losses that are not finite where a sharding has freed the gathered weights that graphs hold."""

import socket

import pytest
import torch
from agent_support import run_script
from torch import nn

from gputop_agent.runtime import late
from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs.graph_origin import Graph


def test_a_tensor_without_its_memory_is_none_in_reach(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    weights = torch.ones(4, 8)
    part = weights[2:, 1:].T
    assert late.has_storage(part) and late.is_plain(weights)
    weights.untyped_storage().resize_(8)
    assert not late.has_storage(part) and not late.is_plain(weights)


def test_a_function_transforms_tensor_is_none_in_reach(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    in_reach = []
    torch.func.vmap(lambda row: in_reach.append(late.is_plain(row)) or row)(torch.ones(2, 3))
    assert in_reach == [False]


def test_a_graph_is_read_without_what_was_freed(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    layer, x = nn.Linear(64, 64), torch.full((4, 64), float("nan"), requires_grad=True)
    loss = layer(x * 1.0).mean()
    layer.weight.untyped_storage().resize_(0)
    assert Graph(loss).origin() is not None


NAN_UNDER_FSDP2 = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.below, self.middle, self.above = (nn.Linear(512, 512) for _ in range(3))
    def forward(self, x, step):
        hidden = self.middle(self.below(x).relu())
        if step >= int(sys.argv[1]): hidden = torch.log(hidden - 1e6)
        return self.above(hidden)
torch.manual_seed(0)
model = Net()
for layer in (model.below, model.middle, model.above): fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(40):
    loss = model(torch.randn(8, 512), step).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
dist.destroy_process_group()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("first", [0, 25])
def test_a_nan_under_fsdp2_harms_nothing_and_has_its_place(tmp_path, first):
    """FSDP2 frees gathered weights after the forward: to read one of a graph's ends the process."""
    script = tmp_path / "ranks.py"
    script.write_text(NAN_UNDER_FSDP2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    outcome = run_script([*ranks, str(script), str(first)], timeout=300)
    assert (outcome.exit_code, outcome.agent_errors) == (0, ""), outcome.stderr
    for guest in outcome.guests:
        origin = guest.of_type("nan_origin")[0]
        assert (origin["step"], origin["operation"]) == (first, "log")
        assert origin["between"] == ["middle", "above"]
