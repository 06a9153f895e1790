"""What flows into a call, as the source tells it: backwards through the assignments of its function
and, of parameters, up to where that function is called.
"""

import ast
from typing import Any, NamedTuple

from gputop_agent.runtime import syntax

_MAX_CALLERS = 3  # that a value is followed up through


class SourcePart(NamedTuple):
    """A file, and a piece of its source that a value may come from."""

    file: str
    node: ast.AST


def into_call(file, line, callers=_MAX_CALLERS, layer=""):
    """The arguments of a statement's calls, and the values of what they are made from; those that
    are parameters are followed up to where their function is called.
    """
    scope = syntax.function_around(file, line) or syntax.tree(file)
    statements = statements_of(scope)
    simple = [node for node in statements if not hasattr(node, "body")]
    simple = [node for node in simple if syntax.has_line(node, line)]
    if not simple:
        return []
    values, names = _values_into(simple[-1], statements, layer.split("."))
    pieces = [SourcePart(file, value) for value in values]
    if callers and isinstance(scope, syntax.FUNCTION) and parameters(scope) & names:
        for call_line in _calls_of(file, scope.name):
            pieces += into_call(file, call_line, callers - 1)
    return pieces


def _values_into(statement, statements, called=()):
    """The arguments of its calls, of those named in ``called`` where it has any, and what those
    before it assign to their names, the last first; and the names.
    """
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    calls = [call for call in calls if syntax.called_name(call) in called] or calls
    arguments = []
    for call in calls:
        arguments += call.args
        arguments += [keyword.value for keyword in call.keywords]
    wanted = {name for part in (*arguments, *_receivers(calls)) for name in names_in(part)}
    return with_assigned(arguments, wanted, statement, statements)


def statements_of(scope):
    """Statements of a function or a module, without those of functions within it."""
    own_nodes = syntax.own_nodes(scope) if scope is not None else ()
    return [node for node in own_nodes if isinstance(node, ast.stmt)]


def with_assigned(arguments, wanted, statement, statements):
    """Values, and what statements before one assign to the wanted names; and all such names."""
    before = [node for node in statements if node.lineno < statement.lineno]
    for node in sorted(before, key=lambda node: node.lineno, reverse=True):
        targets, value = assigned(node)
        if value is not None and targets & wanted:
            arguments.append(value)
            wanted |= names_in(value)
    return arguments, wanted


def parameters(function):
    """Names of a function's parameters."""
    arguments = function.args
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return {argument.arg for argument in named}


def _calls_of(file, name):
    """Lines in which a function or a method of this name is called."""
    calls = (node for node in syntax.nodes(file) if isinstance(node, ast.Call))
    return [
        call.lineno
        for call in calls
        if getattr(call.func, "id", "") == name
        or (getattr(call.func, "attr", "") == name and is_self(getattr(call.func, "value", None)))
    ]


def _receivers(calls):
    """``x`` of ``x.mean()``."""
    return [call.func.value for call in calls if isinstance(call.func, ast.Attribute)]


def assigned(node) -> "tuple[set[str], Any]":
    """Names that a statement writes to, and what it writes."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        return names_in(node.target), node.iter
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return names_in(node.value.func), node.value  # x.div_(y)
    else:
        return set(), None
    value = node if isinstance(node, ast.AugAssign) else node.value
    return {name for target in targets for name in names_in(target)}, value


def names_in(node):
    """``x`` and ``self.x`` of an expression; of ``self.x.y`` and ``x[0]`` as well."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id != "self":
            names.add(part.id)
        elif isinstance(part, ast.Attribute) and is_self(part.value):
            names.add("self." + part.attr)
    return names


def is_self(node):
    """Whether a node is the name ``self``."""
    return isinstance(node, ast.Name) and node.id == "self"


def target_pairs(assign):
    """Each target of an assignment with its value: of ``a, b = x, y`` two."""
    pairs = [(target, assign.value) for target in assign.targets]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs += zip(target.elts, value.elts)
    return pairs
