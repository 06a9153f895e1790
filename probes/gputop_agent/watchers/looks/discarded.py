"""Backwards of a step whose gradients were cleared before an update used them.

In a loop that gathers gradients of several batches, ``zero_grad()`` inside of it leaves those of
the last batch alone. What clears them on purpose is told from that: a perturbation changes the
weights in between or asks for the gradient of an input, gradients that are put together by hand
are others at the update than the last backward left.
"""

import sys
from typing import Any

from gputop_agent.runtime import frames, guard, late, source
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.graphs import graph_leaves

MAX_TENSORS, MAX_VALUES = 8, 64
TOLERANCE = 1e-3  # of a scaled gradient
SURE_LOOKS = 3


class _Listener:
    """Who calls ``zero_grad`` of an optimizer in the step that is looked at; after a suspicion
    only.
    """

    def __init__(self, optimizer):
        self.site: Any = None
        self._owner = optimizer
        plain = optimizer.zero_grad

        def zero_grad(*args, **kwargs):
            self.site = frames.caller_site()
            return plain(*args, **kwargs)

        guard.hide(zero_grad)
        self._ours = zero_grad
        if "zero_grad" not in vars(optimizer):
            optimizer.zero_grad = zero_grad

    def leave(self):
        """Leave the optimizer as it was."""
        if vars(self._owner).get("zero_grad") is self._ours:
            del self._owner.zero_grad


class Discarded:
    """What a look has seen of the backwards of its step. For a single optimizer on a CPU."""

    def __init__(self):
        self.looks = 0  # in a row that found some
        self.has_several = False  # backwards a step, at the last look
        self.cleared_at = None
        self._listener: Any = None
        self.begin(None)

    def begin(self, optimizer):
        """A look begins; its tensors are touched at the first backward."""
        self.optimizer = optimizer
        if self._listener is not None:
            self._listener.leave()
        self._listener = _Listener(optimizer) if optimizer is not None and self.looks else None
        self.parameters: Any = []
        self.owned = set()
        self.backwards = self.cleared = 0
        self.forwards = -1
        self.weights: Any = None  # at the last backward
        self.gradients: Any = None  # after it
        self.is_for_inputs = True  # it may have been for the gradient of an input

    def before_backward(self, args):
        """An outermost backward begins."""
        if self.optimizer is not None:
            self._choose(self.optimizer)
        if not self.parameters or open_step.in_optimizer:
            return
        weights = _values(self.parameters)
        if (
            self.gradients is not None
            and self.forwards != open_step.forwards
            and not any(_values(_gradients(self.parameters)))
            and weights == self.weights
            and not self.is_for_inputs
        ):
            self.cleared += 1
            if self.looks == SURE_LOOKS - 1:
                heard = self._listener.site if self._listener is not None else None
                self.cleared_at = self.cleared_at or heard or _clearing_line()
        self.backwards += 1
        self.is_for_inputs = not self.has_several or self._reaches_inputs(args)
        self.forwards, self.weights = open_step.forwards, weights

    def _choose(self, optimizer):
        """Some of its parameters, where it is the only one."""
        self.optimizer = None
        if _is_alone(optimizer):
            self.parameters, self.owned = _some_parameters(optimizer), _ids(optimizer)

    def after_backward(self):
        """It has ended."""
        if self.backwards:
            gradients = _values(_gradients(self.parameters))
            self.gradients = gradients if any(gradients) else None

    def before_update(self):
        """Fields of the event."""
        is_last = self.gradients is not None and _is_scaled(
            self.gradients, _values(_gradients(self.parameters))
        )
        cleared = self.cleared if is_last else 0
        self.looks = self.looks + 1 if cleared else 0
        fields = {"cleared_backwards": cleared, "step_backwards": self.backwards}
        self.has_several = self.backwards > 1
        self.begin(None)
        if not cleared:
            return {}
        fields["cleared_looks"] = self.looks
        return dict(fields, cleared_at=self.cleared_at) if self.cleared_at else fields

    def _reaches_inputs(self, args):
        """Whether the backward goes to a leaf that is no parameter, as an input to be perturbed.

        Of a graph that is too large to ask, too.
        """
        node = getattr(args[0], "grad_fn", None) if args else None
        leaves = graph_leaves.below(node)
        if leaves is None:
            return True
        parameter_class = session.torch.nn.Parameter
        return any(
            id(leaf) not in self.owned and not isinstance(leaf, parameter_class) for leaf in leaves
        )


def _clearing_line():
    """Site of the only ``zero_grad()`` in the innermost loop around the line that calls the
    backward, or in the function that does; None where there is none, or several.
    """
    calling = [frame for frame in frames.stack(sys._getframe(1)) if frames.is_user(frame)]
    if not calling:
        return None
    lines = source.calls_around("zero_grad", calling[0])
    return source.place(calling[0].f_code.co_filename, lines[0]) if len(lines) == 1 else None


def _is_alone(optimizer):
    return alive(session.optimizers.values()) == [optimizer]


def _ids(optimizer):
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _some_parameters(optimizer):
    plain = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and parameter.is_cpu and late.is_plain(parameter)
    ]
    return plain[:: max(1, len(plain) // MAX_TENSORS)][:MAX_TENSORS]


def _gradients(parameters):
    gradients = (parameter.grad for parameter in parameters)
    return [grad for grad in gradients if grad is not None and late.is_plain(grad)]


def _values(tensors):
    """Some values of each."""
    if not tensors:
        return []
    return [
        value for part in late.some_values(tensors, MAX_VALUES) for value in part.float().tolist()
    ]


def _is_scaled(before, after):
    """Whether values are the same but for one factor, as clipping leaves them."""
    if len(before) != len(after):
        return False
    largest = max(range(len(before)), key=lambda at: abs(before[at]))
    factor = after[largest] / before[largest]
    return all(
        abs(new - factor * old) <= TOLERANCE * abs(after[largest])
        for old, new in zip(before, after)
    )
