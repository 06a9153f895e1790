"""Files of the user's are read without a word on the training's stderr."""

import ast
import warnings

import pytest

from gputop_agent.runtime import syntax

TEXTS = (
    'pattern = "\\d+"\n',
    "pattern = r'\\d+\\'s'\n",
    'path = "C:\\dir\\new"\nname = f"{path}\\N{EM DASH}\\w"\n',
    'both = "\\\\d \\\n\\q" \\\n    "end"\n',
    "data = b'\\x00\\400\\p'\n",
)


@pytest.mark.parametrize("text", TEXTS)
def test_an_escape_that_python_does_not_know_is_not_warned_of(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = syntax.parse(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = ast.parse(text)
    assert [type(node) for node in ast.walk(tree)] == [type(node) for node in ast.walk(plain)]
    lines = [getattr(node, "lineno", None) for node in ast.walk(tree)]
    assert lines == [getattr(node, "lineno", None) for node in ast.walk(plain)]


def test_what_is_no_python_is_still_an_error():
    with pytest.raises(SyntaxError):
        syntax.parse("def broken(:\n")
