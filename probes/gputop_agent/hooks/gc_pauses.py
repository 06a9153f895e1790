"""Pauses of Python's garbage collector. They lie inside the phases and are counted beside them.

The collector drops what its callbacks raise, and Python runs the handlers of signals where a
function of Python's begins. A callback written in Python would so swallow a Ctrl-C that comes
during a collection. This one is C all through: ``getattr(noting, "start", info)`` asks a property
for its value, which is what ``next`` finds, and the next of the map appends the time.
"""

import gc
from functools import partial
from time import monotonic_ns

from gputop_agent.runtime.session import session
from gputop_agent.timing import clock


def _noting(times):
    """A property that appends the time when it is asked for."""
    return property(partial(next, map(times.append, iter(monotonic_ns, None))))


def install(torch):
    """Register with the collector."""
    times = {"start": _noting(clock.collections_began), "stop": _noting(clock.collections_ended)}
    on_gc = partial(getattr, type("Noting", (), times)())
    gc.callbacks.append(on_gc)
    session.undo.append(lambda: gc.callbacks.remove(on_gc))
