"""What gputop itself costs a step.

Where windows open and shut: the median step with the hooks in less the median step just before and
just after with the hooks out, pair by pair; the median of the pairs is what a measured step costs
more, its order statistics the interval. All steps bear that in the proportion of those measured,
and what opening, shutting and booking take by the clock.

Where the hooks are always in: the time that our code takes between their first line and their last,
by the clock; what the call of a hook itself takes, and what torch's code takes longer because of
it, is not in it. Where a busy machine takes the core away, it does so in a system call of ours
sooner than in the training, which would have lost it a moment later: such a step counts as the
dearest ordinary one. Beside workers that use all cores that is every second step, so what is
ordinary is told from the cheapest quarter.

Beside these the agent's thread looks and sends; its CPU time is told as a share of a core. What it
takes from a training that keeps all cores busy is about that.
"""

from collections import deque
from statistics import median
from time import thread_time

from gputop_agent.runtime import transport
from gputop_agent.runtime.session import session

MAX_PAIRS = 256
MIN_PAIRS = 8  # fewer give no interval
MIN_STEPS = 20
# a step's hooks take at most so many times what a cheap one's take, or the core was taken away
ORDINARY = 2
_EARLY_S, _LATE_S = 2.0, 10.0  # between two events
_EARLY_EVENTS = 30


class CostSums:
    """Sums over the steps so far."""

    def __init__(self):
        self.pairs = deque(maxlen=MAX_PAIRS)  # nanoseconds that a measured step took more
        self.measured_steps = self.counted_steps = 0  # while windows opened and shut
        self.wall_ns = 0  # of both
        self.switching_ns = 0  # of opening, shutting and booking
        self.hooked_steps = self.hooked_wall_ns = 0  # while all hooks were in
        self.hook_walls = deque(maxlen=MAX_PAIRS)  # nanoseconds in hooks of the last of these steps
        self.thread_began_s = 0.0  # monotonic, of the agent's thread
        self._events = 0
        self._next_s = 0.0

    def add_pair(self, within, before, after):
        """Wall times of the steps of a window, and of those next to it."""
        if len(within) > 1 and len(before) > 1 and len(after) > 1:
            self.pairs.append(median(within) - (median(before) + median(after)) / 2)

    def summary(self):
        """Fields of the event; None while too little is known."""
        if len(self.pairs) >= MIN_PAIRS and self.counted_steps:
            return self._by_windows()
        if self.hooked_steps >= MIN_STEPS and not self.counted_steps:
            return _fields(
                "clock",
                self._in_hooks_ns(),
                None,
                self.hooked_wall_ns / self.hooked_steps,
            )
        return None

    def _in_hooks_ns(self):
        """Nanoseconds a step, of the last steps."""
        ceiling = ORDINARY * sorted(self.hook_walls)[len(self.hook_walls) // 4]
        return sum(min(wall, ceiling) for wall in self.hook_walls) / len(self.hook_walls)

    def _by_windows(self):
        steps = self.measured_steps + self.counted_steps
        share, always = self.measured_steps / steps, self.switching_ns / steps
        low, middle, high = (always + share * value for value in median_ci95(self.pairs))
        fields = _fields("windows", middle, (low, high), self.wall_ns / steps)
        return dict(fields, measured_steps=self.measured_steps, counted_steps=self.counted_steps)

    def send_if_due(self, now_s):
        """From the agent's thread: an ``own_cost`` event every 2 s at first, every 10 s later."""
        self.thread_began_s = self.thread_began_s or now_s
        if now_s < self._next_s or now_s == self.thread_began_s:
            return
        fields = self.summary()
        if fields:
            self._events += 1
            self._next_s = now_s + (_EARLY_S if self._events < _EARLY_EVENTS else _LATE_S)
            thread_share = thread_time() / (now_s - self.thread_began_s)
            transport.send_event(
                "own_cost", step=session.step, thread_share=round(thread_share, 5), **fields
            )


def _fields(method, cost_ns, interval, step_ns):
    fields = {
        "method": method,
        "cost_us": round(cost_ns / 1e3, 3),
        "step_us": round(step_ns / 1e3, 3),
    }
    if interval:
        fields["low_us"], fields["high_us"] = (round(end / 1e3, 3) for end in interval)
    return fields


def median_ci95(values):
    """``(low, median, high)``: order statistics around the true median with 95 % (binomial)."""
    ordered = sorted(values)
    last, half = len(ordered) - 1, 0.98 * len(ordered) ** 0.5
    low = max(0, int(last / 2 - half))
    high = min(last, int(last / 2 + half + 1))
    return ordered[low], median(ordered), ordered[high]


own_cost = CostSums()


@session.after_fork
def reset():
    """In a forked child."""
    own_cost.__init__()
