"""Attributes of parameters that are nearly called ``requires_grad``."""

import pytest
import torch
from torch import nn

from gputop_agent.runtime import source
from gputop_agent.runtime.session import session
from gputop_agent.watchers.looks import misspelt


class Roots(list):
    """Modules, as weak references are called."""

    def __init__(self, *modules):
        super().__init__(lambda module=module: module for module in modules)


@pytest.fixture
def model(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("for one in model.parameters():\n    one.require_grad = False\n")
    monkeypatch.setattr(source, "users_files", lambda: [str(script)])
    made = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    monkeypatch.setattr(session, "roots", Roots(made))
    monkeypatch.setattr(session, "torch", torch)
    return made


def test_what_was_to_be_frozen_is_trained(model):
    for parameter in model[0].parameters():
        parameter.require_grad = False
    told = misspelt.fields()
    assert told["misspelt"] == "require_grad" and told["misspelt_to"] is False
    assert told["misspelt_values"] == 8 and told["misspelt_names"] == ["0.weight", "0.bias"]
    assert told["misspelt_at"].endswith("train.py:2")


def test_what_was_to_be_thawed_is_frozen(model):
    model[1].requires_grad_(False)
    model[1].weight.requires_gradient = True
    told = misspelt.fields()
    assert told["misspelt_to"] is True and told["misspelt_values"] == 2


@pytest.mark.parametrize("name", ["requires_grad", "is_frozen"])
def test_the_right_name_and_other_ones_say_nothing(model, name):
    for parameter in model.parameters():
        setattr(parameter, name, False)
    assert misspelt.fields() == {}


def test_a_wish_that_came_true_by_other_means_is_none(model):
    model.requires_grad_(False)
    model[0].weight.require_grad = False
    assert misspelt.fields() == {}
