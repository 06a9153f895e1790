"""Whether the ranks sum gradients by themselves, without DDP: how many values ``all_reduce`` sums
over all ranks between a backward and the end of its step.
"""

from typing import Any

from gputop_agent.runtime import frames
from gputop_agent.runtime.session import BACKWARD, FORWARD, session

_SUMS = ("SUM", "AVG")
_PLACED_STEPS = 12  # the first ones, of whose sums the line is noted


class GradientSums:
    """Values of this step so far, and of the one before."""

    def __init__(self):
        self.are_made = False
        self.in_model = False  # within a forward or backward, as of tensor parallelism
        self.site: Any = None  # the line of one of the first
        self.values = 0
        self.of_step = 0


sums = GradientSums()


@session.after_fork
def reset():
    """In a forked child."""
    sums.__init__()


def before_sum(args, kwargs):
    """``all_reduce`` is called. What tensor parallelism sums within forward and backward are
    activations, and a group that is named may be a part of the ranks.
    """
    if session.phase in (FORWARD, BACKWARD):
        sums.in_model = True
        return
    if len(args) > 2 or kwargs.get("group") is not None:
        return
    tensor = args[0] if args else kwargs.get("tensor")
    operation = args[1] if len(args) > 1 else kwargs.get("op", "SUM")
    if str(operation).rpartition(".")[2] in _SUMS and isinstance(tensor, session.torch.Tensor):
        sums.are_made = True
        sums.values += tensor.numel()
        if session.step < _PLACED_STEPS:
            sums.site = frames.caller_site() or sums.site


def on_boundary():
    """A step has ended."""
    sums.of_step, sums.values = sums.values, 0
