"""Updates that no optimizer hook sees (compiled or hand-written) are told from one trained
parameter.

An update in place moves its version; a fused one, or one through ``.data``, does not, but then its
gradient is cleared before the next backward: let go, or filled with zeros.
"""

import weakref
from typing import Any

from gputop_agent.runtime import modes

MIN_UNSEEN = 4


class Sentinel:
    """The parameter, and whether to look at it: no optimizer event ever, or not for long."""

    def __init__(self):
        self.reference: Any = None
        self.version = -1
        self.gradient_version = -1  # after the last backward; -1: not looked at
        self.events = 0  # optimizer steps seen in this process
        self.unseen = 0  # backwards since the last of them
        self.longest = 0  # most backwards between two of them
        self.overdue = False
        self.backwards = 0  # of the last step that ended by an update unseen
        # the ``Cut`` at which the first step ended, if the change seen there was an update
        self.guess: Any = None
        self.believed = False  # such changes are updates
        # ``autograd.grad`` gives the gradients, so the parameter has none of its own
        self.by_grads = False
        self.bare = False  # a tensor of no module: an update may put another one in its place

    @modes.unseen
    def watch(self, parameters, bare=False):
        """Choose the first parameter that has a gradient."""
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf and parameter.grad is not None:
                self.reference = weakref.ref(parameter)
                self.version = parameter._version
                self.bare = bare
                return

    def follow(self, parameter):
        """Updates are made by hand of ``autograd.grad``'s results: from now on by the version."""
        self.reference, self.version, self.by_grads = (
            weakref.ref(parameter),
            parameter._version,
            True,
        )

    @modes.unseen
    def backward_ended(self):
        """Remember the gradient as it is: who writes to it before the next backward clears it."""
        self.gradient_version = -1
        parameter = self.reference() if self.reference is not None else None
        if parameter is not None and parameter.grad is not None and not self.by_grads:
            self.gradient_version = parameter.grad._version

    def optimizer_stepped(self):
        """An optimizer event was seen: nothing needs to be inferred."""
        self.by_grads = False
        self.events += 1
        self.longest = max(self.longest, self.unseen)
        self.unseen = 0
        self.overdue = False
        self.guess = None
        self.backwards = 0  # of the last step that ended by an update unseen

    def watching(self):
        """Whether boundaries have to be inferred."""
        if self.reference is None:
            return False
        if not self.events or self.overdue:
            return True
        if self.unseen > max(MIN_UNSEEN, 4 * self.longest):
            self.overdue = True
            self.was_updated()  # from here on
        return False

    @modes.unseen
    def was_updated(self):
        """Whether the parameter changed, or lost its gradient, since the last question."""
        parameter = self.reference()
        if parameter is None:
            self.reference = None
            return self.bare
        version, self.version = self.version, parameter._version
        if version != self.version:
            return True
        if parameter.grad is None:
            return not self.by_grads
        return 0 <= self.gradient_version != parameter.grad._version

    def was_freed(self):
        """Whether the parameter is gone, as at the end of a script that trained in a function."""
        return self.reference is not None and self.reference() is None


sentinel = Sentinel()
