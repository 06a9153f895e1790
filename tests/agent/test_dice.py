"""Where a dataset's class makes a generator of random numbers."""

import sys
import types

import pytest

from gputop_agent.description import dice
from gputop_agent.runtime import frames

SOURCE = """
import random
import numpy as np


class Plain:
    def __getitem__(self, n):
        return n


class Rolled(Plain):
    def __init__(self, seed):
        self.dice = np.random.default_rng(seed)


class Within:
    def __init__(self, dataset):
        self.dataset = dataset


def shuffled(rows):
    random.Random(0).shuffle(rows)
"""


@pytest.fixture
def data(tmp_path, monkeypatch):
    path = tmp_path / "data.py"
    path.write_text(SOURCE)
    module = types.ModuleType("rolled_data")
    module.__file__ = str(path)
    exec(compile(SOURCE, str(path), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "rolled_data", module)
    monkeypatch.setattr(frames, "origin", lambda file: frames.USER)
    return module


def test_the_class_that_makes_its_dice(data):
    line = 1 + SOURCE.split("\n").index("        self.dice = np.random.default_rng(seed)")
    for dataset in (data.Rolled(0), data.Within(data.Rolled(0))):
        assert dice.rolled_at(dataset).endswith(f"data.py:{line}")


def test_a_class_without_dice(data):
    assert dice.rolled_at(data.Plain()) is None
    assert dice.rolled_at(data.Within(data.Plain())) is None
    assert dice.rolled_at(None) is None
    assert dice.rolled_at([1, 2]) is None
