"""The user's own functions that a schedule asks for its factor."""

import functools

from gputop_agent.runtime import frames, source
from gputop_agent.runtime.lines import instructions_of

_MOST_LINES = 8


def returns_of(scheduler):
    """``["train.py:30", "train.py:33"]``: the lines at which the function that gives a ``LambdaLR``
    its factor, or a schedule of the user's own its rates, returns them, in their order; empty
    where a package does it, or where several functions do.
    """
    functions = getattr(scheduler, "lr_lambdas", None) or [getattr(type(scheduler), "get_lr", None)]
    codes = {code for code in map(_code, functions) if code is not None}
    if len(codes) != 1:
        return []
    (code,) = codes
    if frames.origin(code.co_filename) != frames.USER:
        return []
    lines = {line for instruction, line in instructions_of(code) if _returns(instruction)}
    return [source.place(code.co_filename, line) for line in sorted(lines)][:_MOST_LINES]


def _code(function):
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__code__", None)


def _returns(instruction):
    return instruction.opname.startswith("RETURN_") and instruction.opname != "RETURN_GENERATOR"
