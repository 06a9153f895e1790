"""Functions that several lines of a file call, as the guest finds them in the source."""

import sys
import types

import pytest

from gputop_agent.runtime import frames
from gputop_agent.watchers.stacks import shared_functions

TOOL = """
def area(scores):
    return scores

def interval(scores):
    return area(scores)

class Loss:
    def weighed(self, scores):
        return area(scores)

    def again(self, scores):
        return self.weighed(scores)

    def more(self, scores):
        return self.weighed(scores)

    def step(self, env):
        return env.act(1)

    def act(self, env):
        return env.act(2)

def once(scores):
    return only(scores)

def only(scores):
    # only(scores) is called once
    return scores

class Reader:
    def fitted(self, text):
        while len(self.words.encoded(text)) > 9:
            text = text[1:]
        return self.words.encoded(text)

class Words:
    def encoded(self, text):
        return text.split()
"""


@pytest.fixture
def label(tmp_path):
    file = tmp_path / "tool.py"
    file.write_text(TOOL)

    def of(line, function):
        code = types.SimpleNamespace(co_filename=str(file), co_name=function)
        return frames.label(frames.Still(code, line, 0, {}))

    sys.modules.pop("tool", None)
    return of


def test_the_call_of_a_function_that_other_lines_call_is_found(label):
    path = [label(6, "interval"), label(3, "area")]
    assert shared_functions.calls_in(path) == path[:1]
    method = [label(13, "again"), label(10, "weighed")]
    assert shared_functions.calls_in(method) == method[:1]
    of_its_own = [label(33, "fitted"), label(39, "encoded")]
    assert shared_functions.calls_in(of_its_own) == of_its_own[:1]


@pytest.mark.parametrize(
    "path",
    [
        [(25, "once"), (29, "only")],  # the one line that calls it, but for a comment
        [(19, "step"), (22, "act")],  # a method of another object, which may be of any class
        [(7, "interval"), (3, "area")],  # a line that calls it by no name
        [(3, "area")],
    ],
)
def test_other_calls_are_not(label, path):
    assert shared_functions.calls_in([label(*line) for line in path]) == []


def test_a_package_between_two_lines_is_no_call(label):
    assert shared_functions.calls_in(["(lightning)", label(3, "area")]) == []
    assert shared_functions.calls_in([label(6, "interval"), "(lightning)"]) == []
