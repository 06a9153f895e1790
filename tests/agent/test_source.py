"""Lines of the user's files, found by what they say."""

import sys
import types

import pytest

from gputop_agent.runtime import frames, source

EVALUATE = """
def evaluate(model, seen):
    model.eval()  # {name}
    if not seen:
        {exit}
    if len(seen) > 9:
        model.train()
        return 2
    def inner():
        return 3
    score = sum(model(x) for x in seen)
    {end}
    return score
"""


def load(path, text, monkeypatch):
    """A module of the user's with that text, the only one."""
    path.write_text(text)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, path.stem, module)
    monkeypatch.setattr(
        frames, "origin", lambda file: frames.USER if file == str(path) else frames.LIBRARY
    )


@pytest.mark.parametrize(
    ("exit", "end", "line"),
    [
        ("return 1", "model.train()", 5),
        ("raise ValueError(seen)", "model.train(True)", 5),
        ("model.train(); return 1", "model.train()", None),
        ("return 1", "print(score)", 5),
        ("pass", "model.train()", None),
    ],
)
def test_the_way_out_that_leaves_a_method_out(tmp_path, monkeypatch, exit, end, line):
    load(tmp_path / "evaluation.py", EVALUATE.format(name="here", exit=exit, end=end), monkeypatch)
    source.early_exit.cache_clear()
    told = source.early_exit(r"\.eval\(\)", "train")
    assert (told and int(told.rpartition(":")[2])) == line


TWO_EVALUATIONS = """
def judge(model, held):
    was = model.training
    model.eval()
    error = model(held)
    model.train(was)
    return error

def draw(model, seen):
    model.eval()
    card = model(seen)
    {end}
    return card
"""


@pytest.mark.parametrize(
    ("end", "line"),
    [
        ("pass", 10),
        ("model.train()", None),
        ("if card: model.train()", 10),
        ("with card: model.train()", None),
        ("yield card\n    model.train()", 10),
        ("try: yield card\n    finally: model.train()", None),
    ],
)
def test_the_evaluation_that_nothing_surely_answers(tmp_path, monkeypatch, end, line):
    load(tmp_path / "cards.py", TWO_EVALUATIONS.format(end=end), monkeypatch)
    source.unanswered.cache_clear()
    told = source.unanswered(r"\.eval\(\)", "train")
    assert (told and int(told.rpartition(":")[2])) == line


OWN_TRAIN = """
class Net:
    def train(self, mode=True):
        settled = True
        return super().train(mode and not settled)
    def eval(self):
        return self
"""


def test_the_call_within_a_function_of_the_users(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(OWN_TRAIN)
    scope = {}
    exec(compile(OWN_TRAIN, str(file), "exec"), scope)
    told = source.call_within(scope["Net"].train, "train")
    assert told is not None and told.endswith("net.py:5")
    assert source.call_within(scope["Net"].eval, "train") is None
    assert source.call_within(types.SimpleNamespace, "train") is None


def test_a_line_of_a_training_that_goes_on_stands_in_no_constructor(tmp_path, monkeypatch):
    text = """
class Board:
    def __init__(self, net):
        self.average = net
        self.average.eval()

    def judge(self, nets):
        for net in nets:
            net.eval()
"""
    load(tmp_path / "boards.py", text, monkeypatch)
    source.place_run_later.cache_clear()
    assert source.place_run_later(r"\.eval\(\)").endswith(":9")
