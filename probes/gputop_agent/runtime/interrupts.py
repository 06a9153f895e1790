"""Exceptions that are the user's although they come up inside our code, and so pass through it.

A signal's handler runs wherever the main thread is, also in the middle of ours, and what it raises
(a timeout) is for the user's ``except``. The same goes for what another thread has sent by
``PyThreadState_SetAsyncExc``. Each ``except`` of the guest therefore begins with ``pass_on``, or
with ``guard.failed``, which calls it.
"""

import os
import signal
import sys
from _thread import get_ident
from typing import Any

from gputop_agent.runtime.session import SWITCHED_OFF, session

AGENT_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

#: File name that the wrappers carry. ``warnings.warn(stacklevel=2)`` passes over frames whose file
#: name has both words
#: in it, so a warning raised inside a wrapped function names the user's line as it does without us.
HIDDEN_FILE = "<gputop importlib_bootstrap>"
#: raised by C code of Python without arguments, as what was sent is
_BARE = (StopIteration, MemoryError, AssertionError)


def _is_known_file(filename):
    """Until ``frames`` registers: all but our own file is the user's."""
    return filename.startswith(AGENT_DIR)


def _nothing():
    """Until ``steps`` registers."""


# is_known_file(filename): whether code is ours, torch's or of the standard library
is_known_file = _is_known_file
mend_step = _nothing  # mend_step(): end what a broken-off hook has left half done


def pass_on():
    """In an ``except`` block: raise the exception again if it is the user's, state mended; or one
    that is, and came while that was looked at.
    """
    error, later = sys.exc_info()[1], None
    if error is None:
        return
    try:
        passes = is_users(error)
    except Exception as another:  # a signal came meanwhile, or what we look at is not as we know it
        passes = _was_raised_by_handler(another)
        later = another
    if not passes:
        return
    if get_ident() == session.thread_ident:
        _mend()
    if later is not None:
        raise later from later.__cause__  # without the error that was looked at
    raise


def is_users(error):
    """Whether a signal's handler raised it, or another thread sent it."""
    traceback, innermost, foreign_code = error.__traceback__, None, False
    handlers = _handlers()
    while traceback is not None:
        innermost = traceback.tb_frame
        if innermost.f_code in handlers or _has_interrupted(innermost):
            return True
        foreign_code = foreign_code or not _is_known(innermost.f_code.co_filename)
        traceback = traceback.tb_next
    if innermost is None or session.agent_ident == get_ident():
        return False
    if not _is_known_class(type(error)):
        # neither ours nor torch's nor Python's own code could have raised it
        return not foreign_code
    is_bare = not error.args and not isinstance(error, _BARE)
    return is_bare and innermost.f_code.co_filename.startswith(AGENT_DIR)


def _was_raised_by_handler(error):
    traceback = error.__traceback__
    try:
        while traceback is not None and not _has_interrupted(traceback.tb_frame):
            traceback = traceback.tb_next
    except Exception:
        return False
    return traceback is not None


def _has_interrupted(frame):
    """Whether the frame was called as a signal's handler is: with the frame that it interrupted."""
    interrupted = frame.f_back
    if interrupted is None or frame.f_code.co_filename.startswith(AGENT_DIR):
        # ours may be given frames, too
        return False
    for value in list(frame.f_locals.values()):
        if value is interrupted or (
            type(value) is tuple and any(item is interrupted for item in value)
        ):
            return True
    return False


def _handlers():
    """Code objects of the handlers that are installed."""
    handlers = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        for function in (handler, getattr(type(handler), "__call__", None)):
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if code is not None:
                handlers.add(code)
    return handlers


def _is_known(filename):
    """Whether code is ours, torch's or of the standard library."""
    return is_known_file(filename)


def _is_known_class(kind):
    if kind.__module__ == "__main__":
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or _is_known(file)


def _mend():
    """End what the interruption left half done: the next hook finds nothing open, all booked."""
    if session.thread_ident == SWITCHED_OFF:
        return
    for _ in range(2):
        try:
            return mend_step()
        except (
            Exception
        ):  # interrupted once more (the first exception is on its way already), or worse
            continue
    session.thread_ident = SWITCHED_OFF
    return None
