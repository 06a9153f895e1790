"""How many times an update's loss is that of its micro-batches, which are divided before each
backward so that their gradients add up to the mean: by 4 where four of them make an update.

What a script prints is the loss before that. It is told so where the division is the last operation
before the backward, and by as many as the update has backwards.
"""

from gputop_agent.runtime import modes
from gputop_agent.runtime.session import session

LOOKED_AT_STEPS = 8
_DIVIDES, _MULTIPLIES = "DivBackward0", "MulBackward0"


class LossScale:
    """The factor, once a step has shown it."""

    def __init__(self):
        self.factor = 1
        self.steps_left = LOOKED_AT_STEPS
        self.divisors = []  # of this step's losses

    @modes.unseen
    def look(self, loss):
        """Note what a loss was divided by."""
        self.divisors.append(_divisor_of(loss))

    def step_ends(self, backwards):
        """A step with so many backwards has ended."""
        self.steps_left -= 1
        divisors, self.divisors = self.divisors, []
        is_by_number = all(abs(divisor - backwards) < 1e-3 * backwards for divisor in divisors)
        if backwards > 1 and len(divisors) == backwards and is_by_number:
            self.factor, self.steps_left = backwards, 0


def _divisor_of(loss):
    """What a loss was divided by last, 0 where by nothing; no device is read."""
    node = getattr(loss, "grad_fn", None)
    name = node.name() if node is not None else ""
    other = getattr(node, "_saved_other", None) if name in (_DIVIDES, _MULTIPLIES) else None
    if other is None or not other.is_cpu or other.numel() != 1:
        return 0.0
    value = float(other)
    if name == _MULTIPLIES and value:
        return 1 / value
    return value


loss_scale = LossScale()


@session.after_fork
def reset():
    """In a forked child."""
    loss_scale.__init__()
