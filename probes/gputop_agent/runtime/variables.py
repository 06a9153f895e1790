"""Names and values of a running function.

Before Python 3.13 ``f_locals`` is a dict that the frame keeps, the same that ``locals()`` gives to
the function: reading it brings it up to date, which a function that works with it would see, and
it would hold the first batch for the whole run. So frames of functions that may use it are left
alone, the others' is emptied; under a tracer that would change the variables themselves.
"""

import ast
import inspect
import sys
from functools import lru_cache

from gputop_agent.runtime import syntax

_HAND_IT_OUT, _WORKS_ON_IT = {"locals", "vars"}, "exec"
_OUR_REFERENCES = 3  # the frame's, the name here, and the argument that asks


def of(frame):
    """``[(name, value)]``; none where it could be noticed."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return list(frame.f_globals.items())
    if sys.version_info >= (3, 13):
        return list(frame.f_locals.items())
    if sys.gettrace() is not None or _may_use_the_dict(code):
        return []
    snapshot = frame.f_locals
    variables = list(snapshot.items())
    if sys.getrefcount(snapshot) <= _OUR_REFERENCES:
        snapshot.clear()
    return variables


def value(frame, name):
    """The value of one of them; None where it is not to be had."""
    return dict(of(frame)).get(name)


def first(frame):
    """The value of a function's first parameter, as ``self``; None without."""
    names = frame.f_code.co_varnames
    return value(frame, names[0]) if names else None


def attributes(owner):
    """An object's own attributes by name, as they lie there: no code of its class is run."""
    return object.__getattribute__(owner, "__dict__") if type(owner).__dictoffset__ else {}


@lru_cache(maxsize=256)
def _may_use_the_dict(code):
    """Whether a function calls ``locals()``, ``vars()`` or ``exec``; also where its text, which
    alone tells ``vars(options)`` from that, cannot be read.
    """
    if {*_HAND_IT_OUT, _WORKS_ON_IT}.isdisjoint(code.co_names):
        return False
    function = syntax.function_around(code.co_filename, code.co_firstlineno)
    return function is None or any(map(_uses_the_dict, ast.walk(function)))


def _uses_the_dict(node):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    name = node.func.id
    return name == _WORKS_ON_IT or (name in _HAND_IT_OUT and not node.args)
