"""The user's functions that a piece of source calls, as names and imports tell them."""

import ast
import inspect
import sys
from functools import lru_cache

from gputop_agent.runtime import frames, syntax
from gputop_agent.runtime.session import session
from gputop_agent.watchers.nan import value_flow

_MAX_FUNCTIONS = 40
_RUN_BY_CALL = ("__call__", "forward")


def with_called(parts):
    """These parts, and the bodies of the user's functions that they call, each once."""
    todo, visited = list(parts), set()
    while todo and len(visited) < _MAX_FUNCTIONS:
        part = todo.pop(0)
        if id(part.node) in visited:
            continue
        visited.add(id(part.node))
        yield part
        for call in ast.walk(part.node):
            if isinstance(call, ast.Call):
                todo += _called(part.file, call.func)


def _called(file, function):
    """The function that a call goes to, where its name tells it."""
    if isinstance(function, ast.Name):
        within = _defined(file, function.id, in_class=False)
        return within[:1] or _imported(file, function.id)
    if isinstance(function, ast.Attribute):
        if not value_flow.is_self(function.value) and hasattr(session.torch.Tensor, function.attr):
            return []
        methods = _defined(file, function.attr, in_class=True)
        if methods or not value_flow.is_self(function.value):
            return methods if len(methods) == 1 else []
        return _of_object(file, function.attr)
    return []


def _of_object(file, attribute):
    """What a call of ``self.x`` runs, where ``self.x = Class(...)`` makes it."""
    classes = {
        syntax.called_name(value)
        for node in syntax.nodes(file)
        if isinstance(node, ast.Assign)
        for target, value in value_flow.target_pairs(node)
        if isinstance(value, ast.Call) and value_flow.names_in(target) == {"self." + attribute}
    }
    return [
        value_flow.SourcePart(file, method)
        for node in syntax.nodes(file)
        if isinstance(node, ast.ClassDef) and node.name in classes
        for method in node.body
        if isinstance(method, syntax.FUNCTION) and method.name in _RUN_BY_CALL
    ]


def _defined(file, name, in_class):
    return _functions(file).get((name, in_class), [])


@lru_cache(maxsize=16)
def _functions(file):
    """``{(name, whether it is a method): [SourcePart]}``."""
    nodes, functions = syntax.nodes(file), {}
    methods = {
        node
        for parent in nodes
        if isinstance(parent, ast.ClassDef)
        for node in parent.body
        if isinstance(node, syntax.FUNCTION)
    }
    for node in nodes:
        if isinstance(node, syntax.FUNCTION):
            key = node.name, node in methods
            functions.setdefault(key, []).append(value_flow.SourcePart(file, node))
    return functions


def _imported(file, name):
    """A function that the file's module has from another of the user's."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return of_function(vars(module).get(name))
    return []


def of_function(function):
    """Its source, of one of the user's."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if code is None or frames.origin(code.co_filename) != frames.USER:
        return []
    around = syntax.function_around(code.co_filename, code.co_firstlineno)
    return [] if around is None else [value_flow.SourcePart(code.co_filename, around)]


def called_in(file, line, layer):
    """The bodies of the user's functions and methods that a line calls, if no layer."""
    calls = [node for node in syntax.nodes(file) if isinstance(node, ast.Call)]
    calls = [call for call in calls if syntax.has_line(call, line)]
    names = {syntax.called_name(call) for call in calls}
    if names & {*layer.split("."), *_RUN_BY_CALL}:
        return []
    bodies = []
    for call in calls:
        is_method = isinstance(call.func, ast.Attribute)
        defined = _defined(file, syntax.called_name(call), in_class=is_method)
        bodies += defined if len(defined) == 1 else []
    return bodies
