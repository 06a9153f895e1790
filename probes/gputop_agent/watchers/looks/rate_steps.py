"""How often schedules of the learning rate are stepped, and the lines that do it."""

import sys
from collections import Counter

from gputop_agent.runtime import frames, guard, living
from gputop_agent.runtime.session import session

MOST_LINES = 64  # calls whose line is asked for
ENOUGH, OFTEN = 20, 1.5  # calls; and calls an update, from which it is told


class Calls:
    """Of one schedule."""

    def __init__(self):
        self.count = 0
        self.first_step = session.step
        self.lines = Counter()  # the user's line, and whether it calls the schedule itself


_schedules = living.Living()  # scheduler -> its calls


@session.after_fork
def reset():
    """In a forked child."""
    _schedules.__init__()


def install(lr_scheduler):
    """Wrap the ``step`` that most schedulers have in common."""
    scheduler = lr_scheduler.LRScheduler
    wrapper = guard.around(scheduler.step, before, after, always=True)
    guard.patch(scheduler, "step", wrapper)


def before(args, kwargs):
    """Count a call; its constructor's own is none."""
    scheduler = args[0]
    if not getattr(scheduler, "_step_count", 0):
        return
    calls = _schedules.get(scheduler)
    if calls is None:
        calls = Calls()
        _schedules.put(scheduler, calls)
    calls.count += 1
    if calls.count <= MOST_LINES:
        calls.lines[frames.caller_site(), frames.is_user(sys._getframe(2))] += 1


def after(token, args, result):
    """Never called: ``before`` returns no token."""


def of(optimizer):
    """``{"rate_steps": 2.0, "rate_stepped_at": ["train.py:40", "train.py:52"]}`` where a schedule
    of the optimizer is stepped more than once an update, in the mean; lines that call it
    themselves first, rarer ones before others. Empty elsewhere.
    """
    for scheduler, calls in _schedules.items():
        if getattr(scheduler, "optimizer", None) is not optimizer or calls.count < ENOUGH:
            continue
        often = calls.count / max(1, session.step - calls.first_step + 1)
        if often >= OFTEN:
            lines = sorted(calls.lines, key=lambda line: (not line[1], calls.lines[line]))
            return {
                "rate_steps": round(often, 2),
                "rate_stepped_at": [site for site, _ in lines if site][:3],
            }
    return {}
