"""Groups of an optimizer that are frozen, and the call that froze one by its default."""

import pytest
import torch
from torch import nn

from gputop_agent.runtime import source
from gputop_agent.runtime.session import session
from gputop_agent.watchers.looks import frozen_groups

SOURCE = """
from torch import nn
table = nn.Embedding.from_pretrained(
    weights, padding_idx=0
)
other = nn.Embedding.from_pretrained(weights, freeze=True)
third = nn.EmbeddingBag.from_pretrained(weights, False)
model = AutoModel.from_pretrained("name")
"""


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(source, "users_files", lambda: [str(path)])


def optimizer(*frozen):
    """Of two layers, each a group of its own."""
    layers = nn.Linear(4, 4), nn.Linear(4, 2)
    for index in frozen:
        layers[index].requires_grad_(False)
    return torch.optim.SGD([{"params": [*layer.parameters()]} for layer in layers], 0.1)


def test_a_group_that_is_frozen_beside_one_that_is_not():
    told = frozen_groups.fields(optimizer(0))
    assert told["frozen_group"] == 20
    assert told["frozen_group_at"].endswith("train.py:3")


def test_no_group_is_odd():
    assert frozen_groups.fields(optimizer()) == {}


def test_all_groups_are_frozen():
    told = frozen_groups.fields(optimizer(0, 1))
    assert told["frozen_whole"] and told["frozen_group"] == 30


def test_a_group_of_which_part_is_frozen():
    made = optimizer()
    made.param_groups[0]["params"][0].requires_grad_(False)
    assert frozen_groups.fields(made) == {}


@pytest.mark.parametrize(("name", "line"), [("net.x.weight", 9), ("net.y.weight", None)])
def test_of_two_such_calls_the_one_that_is_given_the_name(tmp_path, monkeypatch, name, line):
    (tmp_path / "train.py").write_text(SOURCE + "x = Embedding.from_pretrained(weights)\n")
    monkeypatch.setattr(frozen_groups.gradients, "names", lambda parameters: [name, None])
    at = frozen_groups.fields(optimizer(1))["frozen_group_at"]
    assert at is None if line is None else at.endswith(f":{line}")
