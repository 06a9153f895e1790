"""Estimates the phases of steps that were only counted from those of the windows around them.

Steps are of two kinds, long ones (three times as long as usual) and ordinary ones, since what makes
a step long is not what the others spend their time on. The time of each kind is divided in
proportion to the sums over the measured steps of that kind: a ratio of sums, in which a window
counts with a weight that falls by a sixteenth at each later one. Of long steps, while none was
measured, only the usual time is divided; the rest is "other".
"""

from gputop_agent import wire
from gputop_agent.runtime.session import CHECKPOINT, COMPILE, EVAL, OTHER
from gputop_agent.timing.clock import MICRO_BATCHES, N_PHASES, SAMPLES, TOKENS, totals

LONG_TIMES, LONG_NS = 3, 100_000  # a long step takes so many times the usual time and so much more
FORGET = 15 / 16  # weight of a window when the next one ends
_ALWAYS_MEASURED = (CHECKPOINT, COMPILE)  # their hooks stay in
_COUNTED = (SAMPLES, TOKENS, MICRO_BATCHES)


class Sums:
    """Weighted sums over measured steps of one kind."""

    def __init__(self):
        self.phases = [0.0] * N_PHASES  # nanoseconds
        self.counts = [0.0] * len(_COUNTED)
        self.steps = 0.0

    def add(self, delta, n):
        """``delta`` are the totals that ``n`` steps have added."""
        for i in range(N_PHASES):
            self.phases[i] += delta[i]
        for i, column in enumerate(_COUNTED):
            self.counts[i] += delta[column]
        self.steps += n

    def forget(self):
        """Another window has ended."""
        self.phases = [FORGET * value for value in self.phases]
        self.counts = [FORGET * value for value in self.counts]
        self.steps *= FORGET

    def step_ns(self):
        """Wall time of a step; 0 without any."""
        return sum(self.phases) / self.steps if self.steps else 0.0

    def weights(self):
        """What divides a time; the hooks of checkpoints and the compiler have measured theirs."""
        return [0.0 if i in _ALWAYS_MEASURED else value for i, value in enumerate(self.phases)]


class Shares:
    """What is known of the steps measured lately."""

    def __init__(self):
        self.ordinary, self.long = Sums(), Sums()
        self._rest = [0.0] * len(_COUNTED)  # of counts, what rounding has left

    def long_ns(self):
        """Longer steps are long ones."""
        return LONG_TIMES * self.ordinary.step_ns() + LONG_NS

    def add_step(self, delta):
        """A step was measured, which has added ``delta`` to the totals."""
        is_long = self.ordinary.steps > 0 and sum(delta[:N_PHASES]) > self.long_ns()
        (self.long if is_long else self.ordinary).add(delta, 1)

    def window_ended(self):
        """Let later windows weigh more."""
        self.ordinary.forget()
        if self.long.steps > 1:
            self.long.forget()

    def divide(self, unmeasured_ns, walls):
        """Book the unmeasured time of steps that took ``walls`` (ns). Returns flags of findings."""
        limit = self.long_ns()
        long_walls = [wall for wall in walls if wall > limit]
        # was measured, such as a checkpoint: that makes a step long
        elsewhere = sum(walls) - unmeasured_ns
        long_ns = min(unmeasured_ns, max(0, sum(long_walls) - max(0, elsewhere)))
        _divide(unmeasured_ns - long_ns, self.ordinary.weights())
        if not long_ns:
            return 0
        if self.long.steps:
            weights = self.long.weights()
            _divide(long_ns, weights)
            return wire.F_EVAL if 2 * weights[EVAL] > sum(weights) else 0
        usual_ns = min(long_ns, int(len(long_walls) * self.ordinary.step_ns()))
        _divide(usual_ns, self.ordinary.weights())
        totals[OTHER] += long_ns - usual_ns
        return 0

    def count(self, n):
        """Book the samples, tokens and micro-batches of ``n`` steps, as measured."""
        steps = self.ordinary.steps + self.long.steps
        for i, column in enumerate(_COUNTED):
            if steps:
                mean = (self.ordinary.counts[i] + self.long.counts[i]) / steps
            else:
                mean = 0.0
            wanted = n * mean + self._rest[i]
            booked = max(0, round(wanted))
            self._rest[i] = wanted - booked
            totals[column] += booked


def _divide(nanoseconds, weights):
    """Add whole nanoseconds to phases in proportion to weights, the rest to the heaviest."""
    total, remaining = sum(weights), nanoseconds
    if total > 0:
        for phase, weight in enumerate(weights):
            part = int(nanoseconds * weight / total)
            totals[phase] += part
            remaining -= part
    totals[weights.index(max(weights)) if total > 0 else OTHER] += remaining
