"""Statements of the user's that fill an attribute, and what flows into it there."""

import ast
from typing import NamedTuple

from gputop_agent.runtime import source, syntax
from gputop_agent.watchers.nan import called_source, value_flow

_MAX_FILES = 40
_MAKE_EMPTY = frozenset("zeros ones empty full zeros_like ones_like empty_like full_like".split())


class Fill(NamedTuple):
    """A statement that fills an attribute, what flows into it, and whether some of that is a
    parameter's.
    """

    file: str
    line: int
    parts: "list[value_flow.SourcePart]"
    is_given: bool


def fills_of(holder):
    """Those of the nearest class that has any: one that overrides a method may leave out the
    other's; else those of other functions of the user's.
    """
    for base in holder.kind.__mro__:
        methods = [
            method for value in vars(base).values() for method in called_source.of_function(value)
        ]
        fills = [fill for method in methods for fill in _fills(method, holder.attribute)]
        if fills:
            return fills
    return [
        fill
        for file in source.users_files()[:_MAX_FILES]
        for node in syntax.nodes(file)
        if isinstance(node, syntax.FUNCTION)
        for fill in _fills(value_flow.SourcePart(file, node), holder.attribute, is_own=False)
    ]


def _fills(method, attribute, *, is_own=True):
    """Statements of a method that fill an attribute of ``self``, or of another object."""
    statements = value_flow.statements_of(method.node)
    for statement in statements:
        for target, value in _filled(statement):
            if not _is_attribute(target, attribute, is_own) or _is_empty(value):
                continue
            values, names = value_flow.with_assigned(
                [value], value_flow.names_in(value), statement, statements
            )
            parts = [value_flow.SourcePart(method.file, value) for value in values]
            is_given = bool(value_flow.parameters(method.node) & names)
            yield Fill(method.file, statement.lineno, parts, is_given)


def _filled(statement):
    """What a statement fills, each with its value: of ``a, b = x, y`` two."""
    if isinstance(statement, ast.Assign):
        pairs = value_flow.target_pairs(statement)
        together = isinstance(statement.value, ast.Tuple) and len(pairs) > len(statement.targets)
        return pairs[len(statement.targets) :] if together else pairs
    targets, value = value_flow.assigned(statement)
    if value is None or not targets:
        return []
    if isinstance(statement, ast.Expr):
        return [(value.func, value)]  # x.append(y)
    return [(statement.target, value)]


def _is_attribute(target, attribute, is_own):
    """Whether ``self.x``, ``self.x[i]`` or ``self.x.append`` is meant, or the same of another."""
    return any(
        isinstance(part, ast.Attribute)
        and part.attr == attribute
        and value_flow.is_self(part.value) == is_own
        for part in ast.walk(target)
    )


def _is_empty(value):
    """``[]``, ``{}``, ``list()``, ``None``, ``np.zeros(n)``: what is filled later."""
    if isinstance(value, ast.Call):
        if syntax.called_name(value) in _MAKE_EMPTY:
            return True
        is_method = isinstance(value.func, ast.Attribute)
        return not (is_method or value.args or value.keywords)
    return not any(isinstance(part, (ast.Name, ast.Call)) for part in ast.walk(value))
