"""Lines of the user's loaded files."""

import ast
import re
import sys
from functools import lru_cache

from gputop_agent.runtime import frames, interrupts, syntax

_MAX_LINES = 100_000  # that are searched
_EXITS = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_TOGETHER = 12  # lines of one file that lie so near are one place, as the branches of an if


@lru_cache(maxsize=16)
def place_with(*words):
    """``"train.py:9"`` where one line alone of the user's loaded files has the words, or the first
    of some that stand together; else None.

    The files are read once for the same words.
    """
    return place_of(_lines_where(lambda code: all(word in code for word in words)))


@lru_cache(maxsize=16)
def place_matching(pattern):
    """The same of the lines in which a regular expression is found."""
    return place_of(_lines_where(re.compile(pattern).search))


def place_where(is_wanted):
    """The same of the lines of which a function says so, comments left out; not remembered."""
    return place_of(_lines_where(is_wanted))


@lru_cache(maxsize=4)
def place_run_later(pattern):
    """The same of these lines that no ``__init__`` has: a training that goes on runs others."""
    lines = _lines_where(re.compile(pattern).search)
    around = [syntax.function_around(file, line) for file, line in lines]
    names = [getattr(function, "name", "") for function in around]
    return place_of([place_ for place_, name in zip(lines, names) if name != "__init__"])


@lru_cache(maxsize=4)
def has(pattern):
    """Whether a line of the user's loaded files matches a regular expression."""
    return bool(_lines_where(re.compile(pattern).search))


def place_in(files, pattern):
    """The same of these files alone, which are not remembered."""
    return place_of(_lines_in(files, re.compile(pattern).search))


def users_files():
    """The files of the user's that are loaded as modules."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    users = [file for file in filter(None, files) if frames.origin(file) == frames.USER]
    return [file for file in users if file.endswith(".py")]


def _lines_where(is_wanted):
    return _lines_in(users_files(), is_wanted)


def _lines_in(files, is_wanted):
    """``[(file, line number)]``, comments left out; none where there is too much to search."""
    lines_found, searched = [], 0
    for file in files:
        try:
            with open(file, errors="replace") as lines:
                for number, line in enumerate(lines, 1):
                    searched += 1
                    if is_wanted(line.partition("#")[0]):
                        lines_found.append((file, number))
        except OSError:
            interrupts.pass_on()
        if searched > _MAX_LINES:
            return []
    return lines_found


def place_of(lines):
    """``"train.py:9"`` of the first of some (file, line number) that stand together; else None."""
    first = _first_of(lines)
    return place(*first) if first else None


def _first_of(lines):
    if not lines:
        return None
    (file, first), (last_file, last) = min(lines), max(lines)
    if file != last_file or last - first > _TOGETHER:
        return None
    return file, first


def place(file, line):
    """``"train.py:9"``."""
    return "%s:%d" % (frames.short_name(file), line)


@lru_cache(maxsize=4)
def early_exit(pattern, method):
    """``"train.py:9"``, the only statement that leaves a function between the line that alone has
    a pattern and the last call of a method, before that method is called on its way; else None.
    """
    first = _first_of(_lines_where(re.compile(pattern).search))
    if first is None:
        return None
    file, line = first
    function = syntax.function_around(file, line)
    if function is None:
        return None
    last = max(_calls(function, method), default=0)
    exits = [
        place(file, statement.lineno)
        for block in _blocks(function)
        for statement in block
        if isinstance(statement, _EXITS) and line < statement.lineno < last
        if not _is_called_in(block, line, method)
    ]
    return exits[0] if len(exits) == 1 else None


def _is_called_in(block, line, method):
    """Whether a statement of a block below a line calls a method."""
    return any(_calls(statement, method) for statement in block if statement.lineno > line)


@lru_cache(maxsize=4)
def unanswered(pattern, method):
    """``"train.py:9"``, the only line with a pattern in whose function no call of a method is sure
    to come: each stands in a branch that the line is not in, or behind a generator's ``yield``,
    which need not go on; else None.
    """
    lines = [
        (file, line)
        for file, line in _lines_where(re.compile(pattern).search)
        if not _calls_surely(syntax.function_around(file, line), line, method)
    ]
    return place_of(lines)


def _calls_surely(function, line, method):
    """Whether a call of a method in a function stands in no branch that the line is not in, and
    behind no ``yield`` but in a ``finally``.
    """
    branches = [node for node in _nodes(function) if isinstance(node, ast.If)]
    at_last, yields = _at_last(function), _yields(function)
    for call in _calls(function, method):
        around = [branch for branch in branches if syntax.has_line(branch, call)]
        is_left = any(line < at < call for at in yields) and call not in at_last
        if not is_left and all(syntax.has_line(branch, line) for branch in around):
            return True
    return False


def _at_last(function):
    """Lines in a ``finally`` of a function."""
    tries = [node for node in _nodes(function) if isinstance(node, ast.Try)]
    return {
        line
        for node in tries
        for statement in node.finalbody
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


def _yields(function):
    """Lines at which a generator stops; none of a context manager, which goes on."""
    decorators = getattr(function, "decorator_list", ())
    if any("contextmanager" in ast.dump(decorator) for decorator in decorators):
        return []
    nodes = _nodes(function)
    return [node.lineno for node in nodes if isinstance(node, (ast.Yield, ast.YieldFrom))]


def _blocks(function):
    """Lists of statements within it, without those of functions in it."""
    for node in syntax.own_nodes(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def assigned_before(frame):
    """``"train.py:9"``, the nearest line above a frame's that makes what that one names, as the
    loss whose backward is called there; None without. ``loss = loss / 4`` makes none.
    """
    code, line = frame.f_code, frame.f_lineno
    nodes = syntax.nodes(code.co_filename)
    named = _named([node for node in nodes if getattr(node, "lineno", 0) == line], ast.Load)
    lines = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Assign) and code.co_firstlineno <= node.lineno < line
        for name in _named(node.targets, ast.Store) & named
        if name not in _named(ast.walk(node.value), ast.Load)
    ]
    return place(code.co_filename, max(lines)) if lines else None


def _named(nodes, context):
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


def calls_around(name, frame):
    """Lines of the calls ``x.name(...)`` in the innermost loop around a frame's line; where there
    is none in it, or no loop, those in its function.
    """
    code, line = frame.f_code, frame.f_lineno
    around = [
        node
        for node in syntax.nodes(code.co_filename)
        if isinstance(node, (ast.For, ast.While)) and syntax.has_line(node, line)
    ]
    loop = max(around, key=lambda node: node.lineno, default=None)
    function = syntax.function_around(code.co_filename, code.co_firstlineno)
    return _calls(loop, name) or _calls(function, name)


def call_within(function, name):
    """``"train.py:9"``, the first call ``x.name(...)`` in a function of the user's; else None."""
    code = getattr(function, "__code__", None)
    if code is None or frames.origin(code.co_filename) != frames.USER:
        return None
    node = syntax.function_around(code.co_filename, code.co_firstlineno)
    lines = _calls(node, name)
    return place(code.co_filename, min(lines)) if lines else None


def _calls(node, name):
    return [
        part.lineno
        for part in _nodes(node)
        if isinstance(part, ast.Attribute) and part.attr == name
    ]


def _nodes(node):
    return () if node is None else ast.walk(node)
