"""Where the training thread stands, with the branches and loops around each line: two ranks that
stand at different lines took different ways at the first of these in which they differ.

Sources are parsed, never run; only while a training stands still.
"""

import ast
import linecache
import sys

from gputop_agent.runtime import frames, interrupts, syntax, variables
from gputop_agent.runtime.lines import line_of
from gputop_agent.runtime.session import session

_MOST_FRAMES = 16
_MOST_BLOCKS = 16
_MOST_LINES = 20_000
_MESSAGE = 200
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_DEPTH = 12
_ROOT_NAMES = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}


def of_training():
    """``[{site, function, code, blocks}]`` of the user's training frames, innermost first."""
    innermost = sys._current_frames().get(session.thread_ident)
    user_frames = [frame for frame in frames.stack(innermost, 128) if frames.is_user(frame)]
    return [_place(frame) for frame in user_frames[:_MOST_FRAMES]]


def handling():
    """``{class, message, site}`` of the exception that the training thread handles just now; None
    where it handles none, or the interpreter does not tell.
    """
    current = getattr(sys, "_current_exceptions", None)
    if current is not None:
        error = current().get(session.thread_ident)
    else:
        error = None
    if isinstance(error, tuple):  # until Python 3.11
        error = error[1]
    if error is None:
        return None
    return {
        "class": type(error).__name__,
        "message": str(error)[:_MESSAGE],
        "site": _raised_at(error.__traceback__),
    }


def collective_root():
    """The rank that the collective in which the training thread stands takes from or gives to; None
    where it stands in none that has one.
    """
    for frame in frames.stack(sys._current_frames().get(session.thread_ident), _DEPTH):
        name = _ROOT_NAMES.get(frame.f_code.co_name)
        if name and frame.f_code.co_filename.endswith("distributed_c10d.py"):
            return _root_of(dict(variables.of(frame)), name)
    return None


def _root_of(values, name):
    """By an argument that is a rank of all, else by one that is a rank of the group."""
    rank, in_group = values.get(name), values.get("group_" + name)
    if rank is None and in_group is not None:
        module = sys.modules["torch.distributed.distributed_c10d"]
        rank = module.get_global_rank(values.get("group"), in_group)
    return rank if isinstance(rank, int) else None


def _raised_at(traceback):
    """The innermost line of the user's in a traceback."""
    site = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if frames.origin(code.co_filename) == frames.USER:
            name = frames.short_name(code.co_filename)
            site = "%s:%d %s" % (name, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return site


def _place(frame):
    line = line_of(frame)
    file = frame.f_code.co_filename
    return {
        "site": frames.site(frame),
        "function": frame.f_code.co_name,
        "code": linecache.getline(file, line).strip()[:120],
        "blocks": blocks("".join(linecache.getlines(file)[:_MOST_LINES]), line),
    }


def blocks(source, line):
    """``["205 for", "211 else"]``: the branches and loops that a line stands in, the innermost
    last; [] where the source cannot be parsed.
    """
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        interrupts.pass_on()
        return []
    blocks_ = []
    _descend(tree.body, line, blocks_)
    return blocks_[-_MOST_BLOCKS:]


def _descend(body, line, found):
    """Go into the statement of a body that holds the line."""
    inside = next((statement for statement in body if _holds([statement], line)), None)
    if inside is None:
        return
    for name, part in _parts(inside):
        if _holds(part, line):
            if name:
                found.append("%d %s" % (inside.lineno, name))
            _descend(part, line, found)
            return
    choice = _choice_in(inside, line)
    if choice:
        found.append("%d %s" % (line, choice))


def _choice_in(statement, line):
    """``and``, ``or`` or ``if`` where the line makes a call by what stands before it in the same
    expression; else empty.
    """
    for node in ast.walk(statement):
        if isinstance(node, ast.BoolOp):
            kind, chosen = type(node.op).__name__.lower(), node.values[1:]
        elif isinstance(node, ast.IfExp):
            kind, chosen = "if", [node.body, node.orelse]
        else:
            continue
        calls = (part for choice in chosen for part in ast.walk(choice))
        if any(isinstance(part, ast.Call) and part.lineno == line for part in calls):
            return kind
    return ""


def _parts(node):
    """``(name, statements)`` of a compound statement; no name where all ways lead through it."""
    if isinstance(node, ast.If):
        return [("if", node.body), ("else", node.orelse)]
    if isinstance(node, _LOOPS):
        name = "while" if isinstance(node, ast.While) else "for"
        return [(name, node.body), ("", node.orelse)]
    if isinstance(node, ast.Try):
        handlers = [("except", handler.body) for handler in node.handlers]
        return [("try", node.body), ("try", node.orelse), *handlers, ("", node.finalbody)]
    cases = [("case", case.body) for case in getattr(node, "cases", ())]
    return cases or [("", getattr(node, "body", []))]


def _holds(statements, line):
    if not isinstance(statements, list) or not statements:
        return False
    first, last = statements[0], statements[-1]
    above = [lines.lineno for lines in getattr(first, "decorator_list", ())]
    return min([first.lineno, *above]) <= line <= (getattr(last, "end_lineno", None) or last.lineno)
