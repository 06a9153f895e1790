"""When a look at the training thread's stack is fair: at a moment that the training has no part in.

A thread that wakes up waits for the interpreter's lock until the training thread gives it up, or
for the switch interval (5 ms). A look at once would never fall into plain Python that runs for less
than that, and the line after it, which gives up the lock, would be blamed. So the moment of a look
is chosen before the agent goes to sleep. It awakes a switch interval earlier, sleeps once more
while the interval is short, and looks where the training is at that moment. Where it awakes too
late for that, C code that began before the moment held the lock, and its line is still the current
one. The short interval changes the turns of busy Python threads: where there are any, looks are
rare (``thread.ThreadLoop.period_s``).
"""

import sys
from time import monotonic, sleep

FINE_S = 0.00003  # nobody else sets this: a user's interval is told from it
_WAKING_S = 0.003  # what the second awakening may come late on a busy machine
_MOST_LEAD_S = 0.05


class _Interval:
    """The switch interval."""

    def __init__(self):
        self.usual_s: "float | None" = None  # the user's while the short one is set


_interval = _Interval()


def lead_s():
    """How long before its moment a look begins: plain Python gives up the lock by then."""
    return min(_MOST_LEAD_S, sys.getswitchinterval() + _WAKING_S)


def await_moment(moment_s):
    """Sleep until ``moment_s`` of the monotonic clock; not at all where it has passed."""
    remaining_s = moment_s - monotonic()
    if remaining_s <= 0:
        return
    usual_s = sys.getswitchinterval()
    if usual_s > FINE_S:
        _interval.usual_s = usual_s
        sys.setswitchinterval(FINE_S)
    try:
        sleep(remaining_s)
    finally:
        restore()


def restore():
    """Give the user's interval back, if still the short one; also at a fork and at the end."""
    usual_s, _interval.usual_s = _interval.usual_s, None
    if usual_s is not None and abs(sys.getswitchinterval() - FINE_S) < 5e-7:
        sys.setswitchinterval(usual_s)
