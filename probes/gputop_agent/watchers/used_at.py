"""Where the user's own classes use a part of the model."""

import inspect
import re
from collections import Counter
from typing import Any

from gputop_agent.runtime import frames, interrupts, source
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session

_MAX_METHODS = 50


def line_of_use(parameters):
    """``"model.py:41"``: where the innermost class of the user's that most of these parameters'
    values lie below names the part they are in, or the head of its ``forward`` where that names it
    nowhere; None without such a class.
    """
    values, depths = Counter(), {}
    for parameter, path in _paths_to({id(parameter) for parameter in parameters}):
        for depth, (module, name) in enumerate(path):
            if name.isidentifier() and _is_users(getattr(type(module), "forward", None)):
                part = type(module), name
                values[part] += parameter.numel()
                depths[part] = max(depth, depths.get(part, 0))
    most = sum(parameter.numel() for parameter in parameters) / 2
    parts = [part for part in values if values[part] > most]
    if not parts:
        return None
    kind, name = max(parts, key=depths.__getitem__)
    return _line_in_class(kind, name)


def _paths_to(wanted):
    """The wanted parameters, by id, each with the modules and attributes that lead to it:
    ``[(net, "head"), (linear, "weight")]``.
    """
    todo: Any = [((), module) for module in alive([*session.roots, *session.untrained])]
    visited = set()
    while todo:
        path, module = todo.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        for name, parameter in (module.__dict__.get("_parameters") or {}).items():
            if id(parameter) in wanted:
                yield parameter, (*path, (module, name))
        for name, child in (module.__dict__.get("_modules") or {}).items():
            if child is not None:
                todo.append(((*path, (module, name)), child))


def _is_users(function):
    code = getattr(function, "__code__", None)
    return code is not None and frames.origin(code.co_filename) == frames.USER


def _line_in_class(kind, name):
    """Where ``self.name`` stands: in the forward before other methods, never where it is made."""
    forward, makes = kind.forward, kind.__dict__.get("__init__")
    others = [method for method in _methods(kind) if method not in (forward, makes)]
    line = _first_line((forward, *others), re.compile(r"\bself\.%s\b" % re.escape(name)))
    if line:
        return line
    return source.place(forward.__code__.co_filename, forward.__code__.co_firstlineno)


def line_in_methods(kind, pattern):
    """The first line with a pattern in the methods of a class of the user's; None without."""
    return _first_line(_methods(kind), pattern)


def line_in_function(function, pattern):
    """The first line with a pattern in a function of the user's; None without."""
    return _first_line([function], pattern) if _is_users(function) else None


def _methods(kind):
    return [method for method in vars(kind).values() if _is_users(method)][:_MAX_METHODS]


def _first_line(methods, pattern):
    for method in methods:
        line = _line_with(pattern, method)
        if line:
            return source.place(method.__code__.co_filename, line)
    return None


def _line_with(pattern, function):
    """The first line of a function that has the words; 0: none has, or it cannot be read."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError, SyntaxError):
        interrupts.pass_on()
        return 0
    for number, line in enumerate(lines, first):
        if pattern.search(line.partition("#")[0]):
            return number
    return 0
