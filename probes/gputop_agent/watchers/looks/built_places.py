"""Where optimizers and their schedulers are made: the lines of user code that their settings stand
in.
"""

import sys

from gputop_agent.runtime import frames, guard, living, variables
from gputop_agent.timing import startup
from gputop_agent.watchers.looks import rate_functions
from gputop_agent.watchers.stacks import shared_functions

_MAX_CONSTRUCTORS = 8

# each -> the line that makes it, and the one that calls that function
_optimizers = living.Living()
_schedulers = living.Living()
# optimizer -> site of its scheduler and lines of its function, which may be gone at the end
_last_sites = living.Living()
_last_returns = living.Living()


def install(optim, lr_scheduler):
    """Wrap the constructors of all optimizers and schedulers of torch's."""
    for class_, sites in (
        (optim.Optimizer, _optimizers),
        (lr_scheduler.LRScheduler, _schedulers),
        (lr_scheduler.ReduceLROnPlateau, _schedulers),
    ):
        guard.patch(class_, "__init__", _noting(class_.__init__, sites))


def of_optimizer(optimizer):
    """The site where it was made; None where a package did it, or nobody saw it."""
    return _site(_optimizers.get(optimizer))


def of_scheduler(optimizer):
    """The site where the scheduler of an optimizer was made; the last of several."""
    site = next((_site(lines) for _, lines in _schedulers_of(optimizer)), None)
    if site:
        _last_sites.put(optimizer, site)
    return site or _last_sites.get(optimizer)


def returns_of_schedule(optimizer):
    """The lines at which a function of the user's gives that scheduler its factor; else empty."""
    lines = next((rate_functions.returns_of(each) for each, _ in _schedulers_of(optimizer)), [])
    if lines:
        _last_returns.put(optimizer, lines)
    return lines or _last_returns.get(optimizer) or []


def _schedulers_of(optimizer):
    """Each with the lines that make it, the last first."""
    return (
        (scheduler, lines)
        for scheduler, lines in reversed(_schedulers.items())
        if sets_rate_of(scheduler, optimizer)
    )


def sets_rate_of(scheduler, optimizer):
    """Whether a scheduler is of the optimizer, or of a trainer's wrapper around it."""
    scheduled = getattr(scheduler, "optimizer", None)
    return scheduled is optimizer or getattr(scheduled, "optimizer", None) is optimizer


def _noting(original, sites):
    """A constructor that notes its caller."""

    def wrapper(self, *args, **kwargs):
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            guard.vanish(error, "__init__")
            raise
        try:
            lines = _lines(self, sys._getframe(1))
            if lines:
                sites.put(self, lines)
            startup.optimizer_made()
        except Exception:
            guard.failed("constructor of an optimizer")
        return result

    return guard.dress(wrapper, original)


def _lines(built, frame):
    """The line that calls the constructor, past constructors of subclasses, after the one that
    calls its function.
    """
    for _ in range(_MAX_CONSTRUCTORS):
        code = frame.f_code
        if code.co_name != "__init__" or variables.first(frame) is not built:
            break
        frame = frame.f_back
    users = [frame_ for frame_ in frames.stack(frame) if frames.is_user(frame_)]
    return [frames.label(frame_) for frame_ in users[1::-1]]


def _site(lines):
    """Of the last of them, or of the call of its function where several lines call that."""
    if not lines:
        return None
    shared = shared_functions.calls_in(lines)
    return (shared or lines[-1:])[0].partition(" ")[0]
