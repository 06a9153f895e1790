"""When a look at the training thread's stack is fair: at a moment that the training has no part in.

A thread that wakes up waits for the interpreter's lock until the training thread gives it up, or
for the switch interval (5 ms). Looks would then never fall into plain Python that runs for less
than that, and the line after it, which gives up the lock, would be blamed. So before each look the
agent sleeps once more, for a random time, while the switch interval is short, and looks where the
training is then. The short interval changes the turns of busy Python threads: where there are any,
looks are rare (``thread.ThreadLoop.period_s``).
"""

import sys
from time import sleep

FINE_S = 0.00003  # nobody else sets this: a user's interval is told from it
MOST_S = 0.02  # long beside the usual interval: what decides when the agent awoke no longer shows


class _Interval:
    """The switch interval."""

    def __init__(self):
        self.usual_s: "float | None" = None  # the user's while the short one is set


_interval = _Interval()


def await_moment(random):
    """Sleep until a fair moment; ``random`` in [0, 1)."""
    usual_s = sys.getswitchinterval()
    if usual_s > FINE_S:
        _interval.usual_s = usual_s
        sys.setswitchinterval(FINE_S)
    try:
        sleep(random * MOST_S)
    finally:
        restore()


def restore():
    """Give the user's interval back, if still the short one; also at a fork and at the end."""
    usual_s, _interval.usual_s = _interval.usual_s, None
    if usual_s is not None and abs(sys.getswitchinterval() - FINE_S) < 5e-7:
        sys.setswitchinterval(usual_s)
