"""Edits of a call's arguments by exact offsets: nothing else of the file moves."""

from __future__ import annotations

import ast

from gputop_analysis.lint.source import Edit, Source

Edits = tuple[Edit, ...]
NONE: Edits = ()


def add_keywords(source: Source, call: ast.Call, **values: str) -> Edits:
    """Append ``name=value`` for each; nothing where the call's form does not allow it."""
    return _append(source, call, [f"{name}={value}" for name, value in values.items()])


def set_keyword(source: Source, call: ast.Call, name: str, value: str) -> Edits:
    """Give the keyword this value, replacing the one it has."""
    argument = keyword(call, name)
    if argument is None:
        return add_keywords(source, call, **{name: value})
    return (Edit(source.start(argument.value), source.end(argument.value), value),)


def remove_keyword(source: Source, call: ast.Call, name: str) -> Edits:
    """Take the keyword out with its comma; nothing where a comment would be lost."""
    argument = keyword(call, name)
    if argument is None:
        return NONE
    neighbours = sorted(_arguments(call), key=source.start)
    at = neighbours.index(argument)
    end = _argument_end(source, call, argument)
    if at:
        span = (_argument_end(source, call, neighbours[at - 1]), end)
    elif len(neighbours) > 1:
        span = (source.start(argument), source.start(neighbours[1]))
    else:
        span = (source.start(argument), source.end(call) - 1)
    if "#" in source.text[slice(*span)]:
        return NONE
    return (Edit(*span, ""),)


def prepend(source: Source, call: ast.Call, argument: str) -> Edits:
    """Put an argument before all others."""
    at = _opening(source, call) + 1
    return (Edit(at, at, argument + (", " if _arguments(call) else "")),)


def insert_line(source: Source, statement: ast.stmt, line: str, *, after: bool) -> Edits:
    """A line of its own before or after a statement that has its lines for itself."""
    indent = source.indent(statement)
    end = source.end(statement)
    line_end = source.text[end:].split("\n", 1)[0]
    if indent is None or (line_end.strip() and not line_end.strip().startswith("#")):
        return NONE
    if not after:
        start = source.line_start(statement)
        return (Edit(start, start, f"{indent}{line}{source.newline}"),)
    behind = end + len(line_end.rstrip("\r"))
    return (Edit(behind, behind, f"{source.newline}{indent}{line}"),)


def delete_statement(source: Source, statement: ast.stmt, siblings: list[ast.stmt]) -> Edits:
    """Take out a statement that has its lines for itself and is not the only one of its block."""
    end = source.end(statement)
    remainder = source.text[end:].split("\n", 1)
    if (
        len(siblings) < 2
        or source.indent(statement) is None
        or remainder[0].strip()
        or len(remainder) < 2
    ):
        return NONE
    return (Edit(source.line_start(statement), end + len(remainder[0]) + 1, ""),)


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument of that name."""
    return next((argument for argument in call.keywords if argument.arg == name), None)


def _append(source: Source, call: ast.Call, texts: list[str]) -> Edits:
    arguments = sorted(_arguments(call), key=source.start)
    if not arguments:
        at = _opening(source, call) + 1
        return (Edit(at, at, ", ".join(texts)),)
    last = arguments[-1]
    if isinstance(last, ast.GeneratorExp) and len(arguments) == 1:
        return NONE
    at = _argument_end(source, call, last)
    indent = source.indent(last)  # type: ignore[arg-type]
    own_line = indent is not None and last.lineno > call.func.lineno
    if own_line:
        between = f",{source.newline}{indent}"
    else:
        between = ", "
    return (Edit(at, at, "".join(between + text for text in texts)),)


def _arguments(call: ast.Call) -> list[ast.expr | ast.keyword]:
    return [*call.args, *call.keywords]


def _argument_end(source: Source, call: ast.Call, argument: ast.expr | ast.keyword) -> int:
    """Behind the argument and the brackets around it, which ``ast`` does not count in."""
    end = at = source.end(argument)
    limit = source.end(call) - 1
    while at < limit:
        character = source.text[at]
        if character == "#":
            at = source.text.find("\n", at)
            if at < 0:
                break
        elif character == ")":
            end = at + 1
        elif character == ",":
            break
        at += 1
    return end


def _opening(source: Source, call: ast.Call) -> int:
    """Offset of the call's opening bracket: the first one behind the function that is not part of
    it.
    """
    at = source.end(call.func)
    while source.text[at] != "(":
        if source.text[at] == "#":
            at = source.text.find("\n", at)
        else:
            at = at
        at += 1
    return at
