"""Whether gradients are ever cleared where several optimizers share the loop.

A backward may be for any of them, so that gradients which are not zero when it begins prove
nothing. But between two updates of an optimizer its gradients must have been zero, or gone, when
one backward began: the first one after they were cleared. If all backwards between two updates
began with what the update before had used, nothing cleared it.
"""

from typing import Any

from gputop_agent.runtime import frames, late, transport
from gputop_agent.runtime.session import session
from gputop_agent.watchers.looks import gradients

MAX_OPTIMIZERS = 4
MAX_BACKWARDS = 16  # between two updates: more are not judged
SURE_LOOKS = 3


class Held:
    """The gradients of one optimizer, from one of its updates to the next."""

    def __init__(self, optimizer):
        self.key = id(optimizer)
        self.name = type(optimizer).__name__
        self.groups = optimizer.param_groups
        self.parameters = []  # some of its parameters, from its first update on
        self.marks = []  # where their gradients lay then, and their versions
        self.backwards = 0
        self.backward_at: Any = None  # the line of the last of them
        self.values = late.Late()
        self.clear = False  # there was nothing left when a backward began

    def update_begins(self):
        """The first update that is seen begins what is looked at; True where it is over."""
        if self.parameters:
            return True
        parameters = [
            parameter
            for group in self.groups
            for parameter in group["params"]
            if parameter.grad is not None and late.is_plain(parameter.grad)
        ]
        self.parameters = late.spread(parameters)
        self.marks = self._marks()
        return not self.parameters

    def backward_begins(self):
        """How much of the gradients is not zero?"""
        if not self.parameters or self.clear:
            return
        self.backwards += 1
        self.backward_at = frames.caller_site()
        gradients = [parameter.grad for parameter in self.parameters]
        if any(gradient is None for gradient in gradients):
            self.clear = True
        elif self.backwards <= MAX_BACKWARDS:
            parts = late.some_values(gradients, late.MAX_VALUES)
            self.values.put(self.backwards, late.count_nonzero, parts)
            self.clear = self.values.known.get(self.backwards) == 0

    def added_to(self):
        """Whether gradients are the same tensors as at the first update, and were written to.

        Others that stand there were put there by the script, which needs nothing cleared.
        """
        marks = self._marks()
        same = len(marks) == len(self.marks) and all(
            address == address_then and version > version_then
            for (address, version), (address_then, version_then) in zip(marks, self.marks)
        )
        return same and 0 < self.backwards <= MAX_BACKWARDS

    def _marks(self):
        gradients = [parameter.grad for parameter in self.parameters]
        return [
            (gradient.data_ptr(), -1 if gradient.is_inference() else gradient._version)
            for gradient in gradients
            if gradient is not None
        ]


class Uncleared:
    """The look that is going on."""

    def __init__(self):
        self.open = {}  # id of an optimizer -> Held
        self.backward_at: Any = None  # the line of the first backward of the look
        self.unread = []  # (step, Held) whose values are on their way from a device
        self.looks = {}  # id of an optimizer -> looks in a row that found its gradients uncleared
        self.empty = {}  # the same of those that found no gradient at all


current = Uncleared()


@session.after_fork
def reset():
    """In a forked child."""
    current.__init__()


def begin(optimizers):
    """Look at these, where there are several."""
    _judge_unread()
    current.open, current.backward_at = {}, None
    if len(optimizers) > 1:
        current.open = {id(optimizer): Held(optimizer) for optimizer in optimizers[:MAX_OPTIMIZERS]}


def is_open():
    """Whether an optimizer has not made its second update yet."""
    return bool(current.open)


def end():
    """Leave what is unfinished."""
    current.open = {}


def before_backward():
    """An outermost backward begins."""
    current.backward_at = current.backward_at or frames.caller_site()
    if late.may_look():
        for held in current.open.values():
            held.backward_begins()


def before_update(optimizer):
    """The update begins."""
    held = current.open.get(id(optimizer))
    if held is None or not held.update_begins():
        return
    del current.open[id(optimizer)]
    _count_empty(optimizer, held)
    if held.parameters:
        held.clear = held.clear or not held.added_to()
        held.parameters, held.groups = [], ()
        current.unread.append((session.step, held))
    if not session.cuda:
        _judge_unread()


def _count_empty(optimizer, held):
    """Tell an optimizer that has had no gradient to work with at three looks in a row."""
    wanting = [
        parameter
        for group in held.groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    is_empty = bool(wanting) and all(parameter.grad is None for parameter in wanting)
    looks = current.empty.get(held.key, 0) + 1 if is_empty else 0
    current.empty[held.key] = looks
    if looks == SURE_LOOKS:
        transport.send_event(
            "no_gradient",
            step=session.step,
            looks=looks,
            optimizer=held.name,
            values=sum(parameter.numel() for parameter in wanting),
            names=gradients.names(wanting[: gradients.MAX_NAMES]),
            at=current.backward_at,
        )


def _judge_unread():
    unread, current.unread = current.unread, []
    for step, held in unread:
        numbers = held.values.read()
        if numbers is None:
            continue
        left_over = not held.clear and min(numbers.values(), default=0) > 0
        looks = current.looks.get(held.key, 0) + 1 if left_over else 0
        current.looks[held.key] = looks
        if looks == SURE_LOOKS:
            transport.send_event(
                "uncleared",
                step=step,
                looks=looks,
                optimizer=held.name,
                backwards=held.backwards,
                backward_at=held.backward_at,
            )
