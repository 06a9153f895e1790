"""Where a script hands on what one of its networks made."""

import linecache
import re
import sys

from gputop_agent.runtime import frames, source, syntax, variables
from gputop_agent.runtime.lines import line_of
from gputop_agent.runtime.session import session
from gputop_agent.watchers.looks import gradients

_MAX_FRAMES = 3
_MAX_LINES = 200  # above the line that calls the next function


def line_of_result(nodes, parameters):
    """``"train.py:41"``: the nearest line above the running one, in the functions of the user's
    that run, that gives a call a variable whose graph ends in one of ``nodes``; else the nearest
    that calls a module with most of the parameters' values; None without.
    """
    users_frames = list(filter(frames.is_user, frames.stack(sys._getframe(1))))[:_MAX_FRAMES]
    for frame in users_frames:
        pairs = variables.of(frame)
        results = [name for name, value in pairs if _node_of(value) in nodes]
        given = _lines_above(frame, [_given(name) for name in results])
        called = _lines_above(frame, [_called(name) for name in _modules(pairs, parameters)])
        file, line = frame.f_code.co_filename, line_of(frame)
        called = [above for above in called if syntax.is_on_the_way(file, above, line)]
        for nearest in (*given[:1], *called[:1]):
            return source.place(file, nearest)
    return None


def _node_of(value):
    return value.grad_fn if type(value) is session.torch.Tensor else None


def _given(name):
    """A call's argument; not the result itself again, nor what is detached."""
    return re.compile(r"^(?!\s*%s\s*=).*\w\([^()]*\b%s\b(?!\s*\.detach)" % ((re.escape(name),) * 2))


def _called(name):
    return re.compile(r"(?<![\w.])%s\(" % re.escape(name))


def _modules(pairs, parameters):
    """Names of the modules that are mostly these parameters: ``G``, ``self.generator``."""
    sizes = {id(parameter): parameter.numel() for parameter in parameters}
    owner = dict(pairs).get("self")
    attributes = variables.attributes(owner)
    children = attributes.get("_modules") if _is_module(owner) else None
    parts = {**attributes, **(children or {})}
    candidates = [*pairs, *(("self." + name, part) for name, part in parts.items())]
    return [name for name, value in candidates if _is_mostly(value, sizes)]


def _is_module(value):
    return issubclass(type(value), session.torch.nn.Module)


def _is_mostly(value, sizes):
    if not _is_module(value):
        return False
    held = [parameter for *_, parameter in gradients.in_modules([("", value)])]
    of_these = sum(sizes.get(id(parameter), 0) for parameter in held)
    largest = max(sum(sizes.values()), sum(parameter.numel() for parameter in held))
    return 2 * of_these > largest


def _lines_above(frame, patterns):
    """Numbers of the lines of a frame's function that have one of the patterns, the nearest above
    its own first.
    """
    code, line = frame.f_code, line_of(frame)
    file = code.co_filename
    function = syntax.function_around(file, line)
    first = max(code.co_firstlineno, line - _MAX_LINES)
    return [
        number
        for number in range(line, first - 1, -1)
        if any(pattern.search(_text(file, number)) for pattern in patterns)
        if syntax.function_around(file, number) is function
    ]


def _text(file, number):
    return linecache.getline(file, number).partition("#")[0]
