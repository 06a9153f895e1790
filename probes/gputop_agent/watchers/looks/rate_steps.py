"""How often schedules of the learning rate are stepped, and the lines that do it."""

import sys
from collections import Counter

from gputop_agent.runtime import frames, guard, living
from gputop_agent.runtime.session import session
from gputop_agent.watchers.looks import built_places

MOST_LINES = 64  # calls whose line is asked for
ENOUGH, OFTEN = 20, 1.5  # calls; and calls an update, from which it is told
RARELY = 20  # updates a call, from which on it is told of a schedule that is made for each
ENOUGH_UPDATES = 100
BY_UPDATE = ("OneCycleLR", "CyclicLR")  # torch's own words: "step should be called after a batch"


class StepCalls:
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
        calls = StepCalls()
        _schedules.put(scheduler, calls)
    calls.count += 1
    if calls.count <= MOST_LINES:
        calls.lines[frames.caller_site(), frames.is_user(sys._getframe(2))] += 1


def after(token, args, result):
    """Never called: ``before`` returns no token."""


def of(optimizer):
    """``{"rate_steps": 2.0, "rate_stepped_at": ["train.py:40", "train.py:52"]}`` where a schedule
    of the optimizer is stepped more than once an update, in the mean; lines that call it
    themselves first, rarer ones before others; ``{"rate_rarely": "OneCycleLR", "rate_stepped": 2,
    "rate_length": 600, ...}`` where one that is made to be stepped with each update is stepped far
    less. Empty elsewhere.
    """
    for scheduler, calls in _schedules.items():
        if not built_places.sets_rate_of(scheduler, optimizer):
            continue
        if _is_rare(scheduler):
            return {
                "rate_rarely": type(scheduler).__name__,
                "rate_stepped": int(scheduler.last_epoch),
                "rate_length": int(getattr(scheduler, "total_steps", 0) or 0),
                "rate_stepped_at": [site for site, _ in calls.lines if site][:3],
            }
        if calls.count < ENOUGH:
            continue
        often = calls.count / max(1, session.step - calls.first_step + 1)
        if often >= OFTEN:
            lines = sorted(calls.lines, key=lambda line: (not line[1], calls.lines[line]))
            return {
                "rate_steps": round(often, 2),
                "rate_stepped_at": [site for site, _ in lines if site][:3],
            }
    return {}


def _is_rare(scheduler):
    """Whether a schedule of updates is stepped once in many of them, as once an epoch."""
    if type(scheduler).__name__ not in BY_UPDATE or session.step < ENOUGH_UPDATES:
        return False
    return 0 < scheduler.last_epoch * RARELY <= session.step
