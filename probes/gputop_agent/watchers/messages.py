"""Messages between two ranks, as the script sends them: gloo's flight recorder has none.

Noted by the hooks on ``send`` and ``recv`` and on what ``isend`` and ``irecv`` call, also in a
batch, in a ring of fixed size.
"""

import sys
import weakref
from collections import deque
from time import time_ns

from gputop_agent.runtime import frames
from gputop_agent.runtime.session import session

NEWEST = 128
_DEPTH = 8

# [time_ns, op, peer, group, tensor shape, site frame code, line, state or work]
_ring = deque(maxlen=NEWEST)


def note(operation, peer, group, tensor, state):
    """Remember a message that begins. Returns the entry, whose last element is its state."""
    code, line = _caller()
    shape = getattr(tensor, "shape", None)
    entry = [time_ns(), operation, peer, group, shape, code, line, state]
    _ring.append(entry)
    return entry


def runs_as(entry, work):
    """The message of an entry is through when its work is done, or forgotten."""
    if work is not None:
        entry[-1] = weakref.ref(work)


def entries():
    """Entries like those of ``flight``; [] on backends whose flight recorder has them itself."""
    return [_entry(number, message) for number, message in enumerate(list(_ring))]


@session.after_fork
def reset():
    """Forget the parent's (called in a fork's child)."""
    _ring.clear()


def _entry(number, one):
    created_ns, operation, peer, group, shape, code, line, state = one
    site = ""
    if code is not None:
        site = "%s:%d %s" % (frames.short_name(code.co_filename), line, code.co_name)
    return {
        "group": group,
        "seq": number,
        "op": operation,
        "bytes": None,
        "shapes": "x".join(map(str, shape)) if shape is not None else "",
        "created_ns": created_ns,
        "state": _state(state),
        "p2p": True,
        "peer": peer,
        "site": site,
    }


def _state(state):
    """Of a message received in the background: whether its work is done."""
    if isinstance(state, str):
        return state
    work = state()
    return "completed" if work is None or work.is_completed() else "started"


def _caller():
    """Code and line of the innermost frame of the user's."""
    frame = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frames.origin(frame.f_code.co_filename) == frames.USER:
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None, 0
