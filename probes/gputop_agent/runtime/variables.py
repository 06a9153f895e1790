"""Names and values of a running function.

Before Python 3.13 ``f_locals`` is a dict that the frame keeps, the same that ``locals()`` gives to
the function: reading it brings it up to date, which a function that works with it would see, and
it would hold the first batch for the whole run. So frames of functions that may use it are left
alone, the others' is emptied; under a tracer that would change the variables themselves.
"""

import inspect
import sys

_HANDS_OUT = {"locals", "vars", "dir", "eval", "exec"}  # the dict, or what works on it
_OUR_REFERENCES = 3  # the frame's, the name here, and the argument that asks


def of(frame):
    """``[(name, value)]``; none where it could be noticed."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return list(frame.f_globals.items())
    if sys.version_info >= (3, 13):
        return list(frame.f_locals.items())
    if sys.gettrace() is not None or not _HANDS_OUT.isdisjoint(code.co_names):
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
