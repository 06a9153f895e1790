"""An optimizer's closure: beside forward and backward it is user code, not the update."""

from functools import partial
from itertools import count
from time import monotonic_ns
from types import FunctionType, MethodType

from gputop_agent.runtime import guard
from gputop_agent.runtime.session import OTHER, session
from gputop_agent.timing import clock, startup

ASKED_AGAIN = 10  # calls in the first update, from which on it may be all of the training
_KINDS = FunctionType, MethodType, partial  # partial: Lightning's


def timed(args, kwargs):
    """The arguments of ``step`` with a closure that books its own time, or None where it has none.

    ``args`` begins with the optimizer.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if type(closure) not in _KINDS:
        return None
    wrapped = _timed(closure)
    if "closure" in kwargs:
        return args, dict(kwargs, closure=wrapped)
    return (args[0], wrapped) + tuple(args[2:]), kwargs


def _timed(closure):
    began_ns = monotonic_ns()
    calls = count(1)

    def timed_closure(*args, **kwargs):
        depth = len(clock.stack)
        try:
            try:
                if next(calls) == ASKED_AGAIN and not session.step:
                    startup.first_update_goes_on(began_ns)
                clock.enter(OTHER)
            except Exception:
                guard.failed("closure")
            try:
                return closure(*args, **kwargs)
            finally:
                clock.unwind(depth)
        except BaseException as error:
            guard.vanish(error, "step")
            raise

    return timed_closure
