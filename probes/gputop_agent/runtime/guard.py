"""Never harm: what of ours fails is counted, and after three errors the originals are back.

A wrapper made by ``around`` runs our code inside ``try`` and the user's call outside it, so that
neither can disturb the other.
"""

import os
import sys
from _thread import get_ident
from functools import WRAPPER_ASSIGNMENTS
from time import monotonic_ns, time_ns

from gputop_agent import wire
from gputop_agent.runtime import interrupts
from gputop_agent.runtime.session import SWITCHED_OFF, session

MAX_ERRORS = 3

hidden_codes = []  # code objects that ``hide`` made, for dynamo's skip list


def _nothing(*_, **__):
    """Until ``transport`` registers."""


report = _nothing  # report(type, **fields): send an event


def failed(where):
    """Count an error in its ``except`` block, give up at the third. Raises only the user's."""
    interrupts.pass_on()
    try:
        session.errors += 1
        last = session.errors >= MAX_ERRORS
        _write_debug(where)
        error = sys.exc_info()[1]
        if last:
            switch_off()
        report("agent_error", where=where, message=repr(error)[:300], disabled=last)
    except Exception:
        interrupts.pass_on()
        session.thread_ident = SWITCHED_OFF


def switch_off():
    """Put every original back. Wrappers that the user still holds pass straight through."""
    session.thread_ident = SWITCHED_OFF
    while session.undo:
        try:
            session.undo.pop()()
        except Exception:
            interrupts.pass_on()


def note(where, error):
    """Count an error that the caller has dealt with."""
    try:
        raise error
    except Exception:
        failed(where)


def detach():
    """The recorder asks the guest to leave the training alone."""
    switch_off()


def safely(function, *args):
    """``function(*args)``, or None and a counted error."""
    try:
        return function(*args)
    except Exception:
        failed(getattr(function, "__name__", "?"))
        return None


def attempt(look):
    """``look()``, or None: its failure is no error of ours, the rest is worth having without it."""
    try:
        return look()
    except Exception:
        interrupts.pass_on()
        return None


def around(original, before, after, adopt=None, always=False):
    """A function that does what ``original`` does, with our code before and after it.

    ``before(args, kwargs)`` returns a token; unless it is None, ``after(token, args, result)``
    follows, also when the original raised (``result`` is None then). Acts on the training thread
    only; on another thread ``adopt()`` is asked whether to make that one the training thread.
    Between two windows (``sampling``) it passes straight through unless it acts ``always``.
    """
    is_compiling = session.torch.compiler.is_compiling
    where = getattr(original, "__name__", "?")

    def wrapper(*args, **kwargs):
        try:
            if is_compiling():
                return original(*args, **kwargs)
            token = None
            try:
                if (always or not session.hooks_out) and (
                    get_ident() == session.thread_ident or (adopt is not None and adopt())
                ):
                    began = monotonic_ns()
                    token = before(args, kwargs)
                    session.hook_ns += monotonic_ns() - began
            except Exception:
                failed(where)
            result = None
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                if token is not None:
                    try:
                        began = monotonic_ns()
                        after(token, args, result)
                        session.hook_ns += monotonic_ns() - began
                    except Exception:
                        failed(where)
        except BaseException as error:
            vanish(error, where)
            raise

    return dress(wrapper, original)


def vanish(error, where):
    """An exception leaves a wrapper of the function named ``where``: take our frames out of its
    traceback.

    Then its traceback is the one without us, also for who catches it. Until Python 3.10 the
    interpreter keeps a traceback of its own meanwhile, so there the frames stay until the exception
    is printed.
    """
    if session.passed_error[0] != id(error):  # else an inner wrapper has noted it
        session.passed_error = id(error), where
        if isinstance(error, RuntimeError) and session.failure[0] != session.step:
            session.failure = session.step, where, time_ns()
    try:
        entry = error.__traceback__
        while entry is not None and is_ours(entry.tb_frame.f_code):
            entry = entry.tb_next
        error.__traceback__ = entry
    except Exception:
        failed("vanish")


def is_ours(code):
    """Whether code is the guest's."""
    return code.co_filename == interrupts.HIDDEN_FILE or code.co_filename.startswith(
        interrupts.AGENT_DIR
    )


def dress(wrapper, original):
    """Make ``wrapper`` look like ``original`` to people, ``inspect`` and ``warnings``."""
    hide(wrapper)
    for name in WRAPPER_ASSIGNMENTS:
        try:
            setattr(wrapper, name, getattr(original, name))
        except AttributeError:
            interrupts.pass_on()
    wrapper.__dict__.update(getattr(original, "__dict__", {}))
    wrapper.__wrapped__ = original
    return wrapper


def hide(function):
    """Give the function's code the hidden file name and keep dynamo away from it."""
    function.__code__ = code = function.__code__.replace(co_filename=interrupts.HIDDEN_FILE)
    hidden_codes.append(code)
    if session.skip_code is not None:
        session.skip_code(code)


class AppliedPatch:
    """An attribute of a class or module that is ours, unless somebody has patched on top of it."""

    def __init__(self, owner, name, replacement):
        self.owner, self.name, self.replacement = owner, name, replacement
        self.original = self._current()

    def put_in(self):
        """Set ours where the original is."""
        if self._current() is self.original:
            setattr(self.owner, self.name, self.replacement)

    def take_out(self):
        """Set the original where ours is."""
        if self._current() is self.replacement:
            setattr(self.owner, self.name, self.original)

    def _current(self):
        owner = self.owner
        if isinstance(owner, type):
            return owner.__dict__.get(self.name)
        return getattr(owner, self.name, None)


def patch(owner, name, replacement, steady=True):
    """``setattr`` that is undone by ``switch_off``; one that is not ``steady`` is out between two
    windows.

    Those are what every step calls. A wrapper that few steps call costs less where it stays and
    passes through.
    """
    patch = AppliedPatch(owner, name, replacement)
    patch.put_in()
    session.undo.append(patch.take_out)
    if not steady:
        session.removable.append(patch)


def _write_debug(where):
    path = os.environ.get(wire.ENV_DEBUG)
    if path:
        import traceback

        with open(path, "a") as file:
            file.write("[pid %d] %s\n%s\n" % (os.getpid(), where, traceback.format_exc()))
