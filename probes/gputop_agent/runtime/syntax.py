"""Syntax trees of the user's files: functions around a line, and what is their own."""

import ast
import linecache
import re
from functools import lru_cache

from gputop_agent.runtime import interrupts

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_MAX_LINES = 20_000  # of a file
_ESCAPE = re.compile(r"\\(.)", re.S)
_OF_SYNTAX = frozenset("\r\n'\"\\N")  # line ends, quotes; \N{DASH}, whose braces are no f-string's


def parse(text):
    r"""The tree of a text, in whose strings an escape such as ``\d`` is a backslash and a letter.

    Of one that it does not know Python 3.12 would warn on the training's stderr; a filter for that
    would have it show warnings again that it has shown once.

    Raises:
        SyntaxError, ValueError, RecursionError: it cannot be parsed.
    """
    return ast.parse(_ESCAPE.sub(_as_letters, text))


def _as_letters(match):
    return match[0] if match[1] in _OF_SYNTAX else "\\" + match[0]


@lru_cache(maxsize=16)
def tree(file):
    """A file's tree, with its own lines; None where it cannot be read."""
    lines = linecache.getlines(file)
    if not lines or len(lines) > _MAX_LINES:
        return None
    try:
        return parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        interrupts.pass_on()
        return None


@lru_cache(maxsize=16)
def nodes(file):
    """All nodes of its tree; none where it cannot be read."""
    root = tree(file)
    return () if root is None else tuple(ast.walk(root))


def function_around(file, line):
    """The innermost function that has a line, its decorators included; else None."""
    around = [node for node in nodes(file) if isinstance(node, FUNCTION)]
    around = [node for node in around if _first_line(node) <= line <= (node.end_lineno or 0)]
    return max(around, key=lambda node: node.lineno, default=None)


def _first_line(function):
    return min([function.lineno, *(node.lineno for node in function.decorator_list)])


def is_on_the_way(file, line, later):
    """Whether a line stands in no branch that a later one is not in."""
    branches = [node for node in nodes(file) if isinstance(node, ast.If)]
    arms = [arm for branch in branches for arm in (branch.body, branch.orelse) if arm]
    around = [arm for arm in arms if arm[0].lineno <= line <= (arm[-1].end_lineno or 0)]
    return all(arm[0].lineno <= later <= arm[-1].end_lineno for arm in around)


def called_name(call):
    """``step`` of ``optimizer.step()`` and of ``step()``; empty for what has no name."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def has_line(node, line):
    """Whether a node begins at or before a line, and ends at or after it."""
    return node.lineno <= line <= node.end_lineno


def own_nodes(root):
    """Its nodes, without the bodies of functions and classes within it."""
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (*FUNCTION, ast.ClassDef)):
                todo.append(child)
