"""Edits of a call's arguments by exact offsets: nothing else of the file moves."""

from __future__ import annotations

import ast

from gputop_analysis.lint.source import Edit, SourceFile, apply

Edits = tuple[Edit, ...]
NONE: Edits = ()


def add_keywords(source: SourceFile, call: ast.Call, **values: str) -> Edits:
    """Append ``name=value`` for each; nothing where the call's form does not allow it."""
    return _append(source, call, [f"{name}={value}" for name, value in values.items()])


def set_keyword(source: SourceFile, call: ast.Call, name: str, value: str) -> Edits:
    """Give the keyword this value, replacing the one it has."""
    argument = keyword(call, name)
    if argument is None:
        return add_keywords(source, call, **{name: value})
    return (Edit(source.start(argument.value), source.end(argument.value), value),)


def remove_keyword(source: SourceFile, call: ast.Call, name: str) -> Edits:
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


def prepend(source: SourceFile, call: ast.Call, argument: str) -> Edits:
    """Put an argument before all others."""
    at = _opening(source, call) + 1
    return (Edit(at, at, argument + (", " if _arguments(call) else "")),)


def insert_line(source: SourceFile, statement: ast.stmt, line: str, *, after: bool) -> Edits:
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


def delete_statement(source: SourceFile, statement: ast.stmt, siblings: list[ast.stmt]) -> Edits:
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


def move(
    source: SourceFile,
    statement: ast.stmt,
    siblings: list[ast.stmt],
    *,
    before: ast.stmt | None = None,
    after: ast.stmt | None = None,
    changed: Edits = NONE,
) -> Edits:
    """Take a statement out of its block and put it, with the edits inside it made, before or after
    another one, with the indent of that one.
    """
    target = before or after
    taken = delete_statement(source, statement, siblings)
    if target is None or not taken or has_long_text(statement):
        return NONE
    indent, new_indent = source.indent(statement) or "", source.indent(target) or ""
    begin = source.start(statement)
    inside = [Edit(edit.start - begin, edit.end - begin, edit.new) for edit in changed]
    first, *later_lines = apply(source.segment(statement), inside).splitlines()
    if not all(line.startswith(indent) for line in later_lines):
        return NONE
    lines = [first, *(new_indent + line[len(indent) :] for line in later_lines)]
    put = insert_line(source, target, source.newline.join(lines), after=target is after)
    return (*taken, *put) if put else NONE


def unwrap(source: SourceFile, statement: ast.With | ast.AsyncWith) -> Edits:
    """Take a ``with`` away from around its block; nothing where a comment would be lost, or where
    moving the lines would change a text.
    """
    indent, inner = source.indent(statement), source.indent(statement.body[0])
    first = source.line_start(statement.body[0])
    header = source.text[source.start(statement) : first]
    if indent is None or inner is None or len(statement.items) > 1 or "#" in header:
        return NONE
    if has_long_text(statement):
        return NONE
    lines = source.text[first : source.end(statement)].splitlines(keepends=True)
    if not all(line.startswith(inner) or not line.strip() for line in lines):
        return NONE
    moved = [indent + line[len(inner) :] if line.strip() else line for line in lines]
    return (Edit(source.line_start(statement), source.end(statement), "".join(moved)),)


def has_long_text(node: ast.AST) -> bool:
    """Whether a string in it goes over several lines: their indent is part of it."""
    return any(
        isinstance(part, ast.Constant | ast.JoinedStr) and part.lineno != part.end_lineno
        for part in ast.walk(node)
    )


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument of that name."""
    return next((argument for argument in call.keywords if argument.arg == name), None)


def _append(source: SourceFile, call: ast.Call, texts: list[str]) -> Edits:
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


def _argument_end(source: SourceFile, call: ast.Call, argument: ast.expr | ast.keyword) -> int:
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


def _opening(source: SourceFile, call: ast.Call) -> int:
    """Offset of the call's opening bracket: the first one behind the function."""
    at = source.end(call.func)
    while source.text[at] != "(":
        if source.text[at] == "#":
            at = source.text.find("\n", at)
        else:
            at = at
        at += 1
    return at
