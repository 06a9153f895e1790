"""The phase clock: every nanosecond of the training thread belongs to exactly one phase.

``totals`` holds nanoseconds by phase first, then the time between two windows that no hook has
measured (``sampling`` divides it), then the counters below; all but the unmeasured time only ever
grow. A step is the difference of two copies of it, which is why the phases of a record add up to
its wall time to the nanosecond.
"""

from collections import deque
from time import monotonic_ns

from gputop_agent.runtime.session import OTHER, UNMEASURED, session

N_PHASES = OTHER + 1
GC_NS, AGENT_NS, COMPUTE_CPU_NS, SAMPLES, TOKENS, MICRO_BATCHES, OPTIMIZER_STEPS = range(
    UNMEASURED + 1, UNMEASURED + 8
)

totals = [0] * (UNMEASURED + 8)
# totals at the last end of a step, or where the present one may have ended
floor = [0] * len(totals)
stack = []  # phases to go back to
LOSS_SHARE = 4  # a loss computed outside the model takes at most a quarter of its forward
MAX_COLLECTIONS = 1 << 13
"""Collections kept for the next booking: a process that never trains books none."""
# times of the garbage collector's
collections_began, collections_ended = deque(maxlen=MAX_COLLECTIONS), deque(maxlen=MAX_COLLECTIONS)


def enter(phase):
    """Begin a phase inside the current one. Returns the time."""
    now_ns = monotonic_ns()
    current = session.phase
    totals[current] += now_ns - session.last_ns
    session.last_ns = now_ns
    stack.append(current)
    session.phase = phase
    return now_ns


def leave():
    """End the innermost phase. Returns the time."""
    now_ns = monotonic_ns()
    totals[session.phase] += now_ns - session.last_ns
    session.last_ns = now_ns
    session.phase = stack.pop() if stack else OTHER
    return now_ns


def book():
    """Book the time so far to the current phase. Returns the time."""
    now_ns = monotonic_ns()
    totals[session.phase] += now_ns - session.last_ns
    session.last_ns = now_ns
    return now_ns


def book_until(end_ns):
    """Book the time until ``end_ns``, which lies behind us, to the current phase."""
    totals[session.phase] += end_ns - session.last_ns
    session.last_ns = end_ns


def switch(phase):
    """End the current phase and go on in ``phase`` at the same depth. Returns the time."""
    now_ns = book()
    session.phase = phase
    return now_ns


def unwind(depth):
    """Leave phases until ``depth`` are open; heals what an exception left behind."""
    now_ns = monotonic_ns()
    totals[session.phase] += now_ns - session.last_ns
    session.last_ns = now_ns
    if len(stack) > depth:
        session.phase = stack[depth]
        del stack[depth:]


def move(nanoseconds, source, target):
    """Give time booked to ``source`` in this step to ``target``: no more than the step has."""
    nanoseconds = max(0, min(nanoseconds, totals[source] - floor[source]))
    totals[source] -= nanoseconds
    totals[target] += nanoseconds


def collected(until_ns):
    """Nanoseconds of each collection that has ended by then and was not asked for before."""
    spans = []
    while collections_ended and collections_ended[0] <= until_ns:
        ended, began = collections_ended.popleft(), 0
        while collections_began and collections_began[0] <= ended:
            began = collections_began.popleft()
        if began:
            spans.append(ended - began)
    return spans


def rebase(phase):
    """Make ``phase`` the one outside all others that are open. Returns the time."""
    now_ns = book()
    if stack:
        stack[0] = phase
    else:
        session.phase = phase
    return now_ns


@session.after_fork
def reset():
    """Start from zero (in a forked child, or when training begins)."""
    totals[:] = floor[:] = [0] * len(totals)
    del stack[:]
    collections_began.clear()
    collections_ended.clear()
    session.phase = OTHER
    session.last_ns = monotonic_ns()
