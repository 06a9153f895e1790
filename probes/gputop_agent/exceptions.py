"""An exception that ends the process or a thread: one event, and the printed traceback is the one without us."""

import sys
import threading

from . import guard, transport, wire
from .guard import HIDDEN_FILE
from .state import S

MAX_MESSAGE = 500
MAX_FRAMES = 12
_IGNORED = (KeyboardInterrupt, SystemExit)

_installed = False


def install():
    """Chain into ``sys.excepthook`` and ``threading.excepthook``, once."""
    global _installed
    if _installed:
        return
    _installed = True
    _chain(sys, _details_of_main)
    _chain(threading, _details_of_thread)


def _chain(owner, details):
    original = owner.excepthook

    def excepthook(*args):
        try:
            report(*details(args))
        except Exception:
            guard.failed("excepthook")
        return original(*args)

    guard.patch(owner, "excepthook", guard.dress(excepthook, original))


def _details_of_main(args):
    return args[1], args[2]


def _details_of_thread(args):
    return args[0].exc_value, args[0].exc_traceback


def report(error, traceback):
    """Send the event, and take our frames out of the traceback and of those of its causes."""
    if error is None:
        return
    frames = _frames(traceback)
    forget_our_frames(error, set())
    if isinstance(error, _IGNORED):
        return
    transport.send_event(
        "exception",
        **{"class": type(error).__name__},
        message=str(error)[:MAX_MESSAGE],
        site=_site(frames),
        phase=wire.PHASES[S.phase_at_error if S.phase_at_error is not None else S.phase],
        step=S.step,
        traceback=["%s:%d %s" % frame for frame in frames[-MAX_FRAMES:]],
    )


def forget_our_frames(error, seen):
    """Relink the tracebacks of an exception and of its causes without the wrappers."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    entry = error.__traceback__
    while entry is not None:
        following = entry.tb_next
        while following is not None and following.tb_frame.f_code.co_filename == HIDDEN_FILE:
            following = following.tb_next
        entry.tb_next = following
        entry = following
    forget_our_frames(error.__cause__, seen)
    forget_our_frames(error.__context__, seen)


def _frames(traceback):
    found = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename != HIDDEN_FILE:
            found.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return found


def _site(frames):
    from . import frames as names

    for filename, line, function in reversed(frames):
        if names.origin(filename) == names.USER:
            return "%s:%d %s" % (names.short_name(filename), line, function)
    return None
