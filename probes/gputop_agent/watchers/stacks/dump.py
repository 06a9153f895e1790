"""Stacks of all threads and the last collective, by the agent's thread while others hang."""

import sys
import threading

from gputop_agent import wire
from gputop_agent.runtime import current, frames, guard, transport
from gputop_agent.runtime.session import session
from gputop_agent.watchers import flight
from gputop_agent.watchers.stacks import places

_MAX_THREADS = 64
_MAX_FRAMES = 48


def send(reason=""):
    """Send one ``stack_dump`` event; takes no lock that the training could hold."""
    transport.send_event(
        "stack_dump",
        reason=reason,
        phase=wire.PHASES[current.phase(sys._current_frames().get(session.thread_ident))],
        step=current.step(),
        threads=thread_stacks(),
        collective=guard.attempt(flight.last_collective),
        places=guard.attempt(places.of_training),
        handling=guard.attempt(places.handling),
        root=guard.attempt(places.collective_root),
    )


def thread_stacks():
    """``[{name, training, frames}]``, the training thread first; frames (``"file:line function"``)
    innermost first.
    """
    names = {
        ident: thread.name for ident, thread in list(getattr(threading, "_active", {}).items())
    }
    current = sys._current_frames()
    own_ident = threading.get_ident()
    idents = sorted(
        (ident for ident in current if ident != own_ident),
        key=lambda ident: ident != session.thread_ident,
    )
    return [
        {
            "name": names.get(ident, "thread-%d" % ident),
            "training": ident == session.thread_ident,
            "frames": _labels(current[ident]),
        }
        for ident in idents[:_MAX_THREADS]
    ]


def _labels(innermost):
    """The frames by name, without those of our own wrappers."""
    shown = (
        f
        for f in frames.stack(innermost, _MAX_FRAMES)
        if frames.origin(f.f_code.co_filename) != frames.AGENT
    )
    return [frames.label(frame) for frame in shown]
