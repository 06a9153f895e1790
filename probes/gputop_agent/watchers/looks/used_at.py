"""Where the user's own classes use a part of the model."""

import inspect
import re
from collections import Counter
from typing import Any, NamedTuple

from gputop_agent.runtime import frames, interrupts, source
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session

_MAX_METHODS = 50
_CUTS = re.compile(r"\.detach\(\)|\.data\b|no_grad\(\)|inference_mode\(|\.numpy\(\)|\.item\(\)")


class UsedPart(NamedTuple):
    """``Net.blocks``: a class of the user's, and what it holds of a model."""

    kind: type
    name: str


def line_of_use(parameters):
    """``"model.py:41"``: where the innermost class of the user's that most of these parameters'
    values lie below names the part they are in, or the head of its ``forward`` where that names it
    nowhere; None without such a class.
    """
    parts = _parts_around(parameters)
    return _line_in_class(*parts[0]) if parts else None


def line_that_cuts(parameters):
    """The line that takes a value out of the graph in the innermost of the classes that use a part
    of which these are all that trains, or the first of some that stand together; None without one,
    and where that class has several apart.
    """
    wanted = {id(parameter) for parameter in parameters}
    for part in _parts_around(parameters):
        if not _is_whole(part, wanted) or _names_nowhere(part):
            return None
        cuts = [line for method in _methods(part.kind) for line in _numbers_with(_CUTS, method)]
        if cuts:
            return source.place_of(cuts)
    return None


def _is_whole(part, wanted):
    """Whether all that trains in a part is wanted, in each object of the class."""
    holders: Any = [module for _, module in _in_model() if type(module) is part.kind]
    children = [(module.__dict__.get("_modules") or {}).get(part.name) for module in holders]
    trained = [
        parameter
        for child in children
        if child is not None
        for parameter in child.parameters()
        if parameter.requires_grad
    ]
    return all(id(parameter) in wanted for parameter in trained)


def _names_nowhere(part):
    """Whether no method but the one that makes it names a part."""
    pattern = re.compile(r"\bself\.%s\b" % re.escape(part.name))
    makes = part.kind.__dict__.get("__init__")
    used_in = [method for method in _methods(part.kind) if method is not makes]
    return _first_line(used_in, pattern) is None


def _in_model():
    return [
        pair
        for root in alive([*session.roots, *session.untrained])
        for pair in root.named_modules()
    ]


def _parts_around(parameters):
    """Parts that most of these values lie in, the innermost first."""
    values, depths = Counter(), {}
    for parameter, path in _paths_to({id(parameter) for parameter in parameters}):
        for depth, (module, name) in enumerate(path):
            if name.isidentifier() and _is_users(getattr(type(module), "forward", None)):
                part = UsedPart(type(module), name)
                values[part] += parameter.numel()
                depths[part] = max(depth, depths.get(part, 0))
    half = sum(parameter.numel() for parameter in parameters) / 2
    parts = [part for part in values if values[part] > half]
    return sorted(parts, key=depths.__getitem__, reverse=True)


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
    other_methods = [method for method in _methods(kind) if method not in (forward, makes)]
    line = _first_line((forward, *other_methods), re.compile(r"\bself\.%s\b" % re.escape(name)))
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
    """Its own, without what decorates them."""
    methods = [inspect.unwrap(value) for value in vars(kind).values() if callable(value)]
    return [method for method in methods if _is_users(method)][:_MAX_METHODS]


def _first_line(methods, pattern):
    lines = (line for method in methods for line in _lines_with(pattern, method))
    return next(lines, None)


def _lines_with(pattern, function):
    """Places of a function's lines that have the words."""
    return (source.place(file, number) for file, number in _numbers_with(pattern, function))


def _numbers_with(pattern, function):
    """Their files and numbers; none where it cannot be read."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError, SyntaxError):
        interrupts.pass_on()
        return
    for number, line in enumerate(lines, first):
        if pattern.search(line.partition("#")[0]):
            yield function.__code__.co_filename, number
