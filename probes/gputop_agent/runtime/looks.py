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
from time import monotonic, monotonic_ns, sleep

FINE_S = 0.00003  # nobody else sets this: a user's interval is told from it
_WAKING_S = 0.003  # what the second awakening may come late on a busy machine
_MOST_LEAD_S = 0.05
#: That a look counts for at most: a process may have been stopped.
_MOST_AT_ONCE = 4


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


def period_at(rates, age_s):
    """The period of the first of ``rates``, pairs of an age (s) and a period (s), not yet over."""
    return next(period_s for until_s, period_s in rates if age_s < until_s)


def rarer(age_s, first_s, last_s):
    """Seconds to the next time of what comes often at first and rarely in the end: a sixtieth of
    the age, within these bounds.
    """
    return min(last_s, max(first_s, age_s / 60))


class Moments:
    """The moments of a thread's looks, one after the other."""

    def __init__(self, period_s):
        self._random = monotonic_ns() & 0x7FFFFFFF
        self._next_s = monotonic() + period_s

    def plan(self, period_s):
        """Choose the moment of the next look, ``period_s`` +- half after the last one's: neither
        when that look took place nor when it ended counts, since the code that is looked at decides
        both.
        """
        pause_s = period_s * (0.5 + self._chance())
        now_s = monotonic()
        is_late = self._next_s + pause_s < now_s + lead_s()
        self._next_s = (now_s if is_late else self._next_s) + pause_s

    def pause_s(self):
        """Seconds to sleep until ``come`` is to be called."""
        return max(0.0, self._next_s - lead_s() - monotonic())

    def come(self):
        """Return at the moment itself."""
        await_moment(self._next_s)

    def passed(self, period_s):
        """How many moments this look counts for: one, and those that C code which kept the lock let
        pass without a look.
        """
        late_s = monotonic() - self._next_s
        return min(_MOST_AT_ONCE, 1 + int(late_s / period_s))

    def _chance(self):
        """A number between 0 and 1, out of step with any loop; no user's generator is touched."""
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        return self._random / 0x7FFFFFFF
