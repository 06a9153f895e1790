"""Weights of a training without an optimizer: leaves of the loss's graph, looked at around the
first backward of a look.

What has a gradient that is left over from before, and has not changed since the last look while
others have, is updated by nobody; a gradient that is zero as a whole is dead.
"""

import weakref

from gputop_agent.runtime import late
from gputop_agent.watchers.graphs import graph_leaves
from gputop_agent.watchers.looks import gradients

MAX_LEAVES = 64
KEPT_VALUES = 64


class ByHand:
    """What the looks have seen so far."""

    def __init__(self):
        self.zeros = gradients.Zeros()
        self.looks = 0  # in a row that found a leaf that nobody updates
        self.kept = {}  # id of a leaf -> (weak reference, some of its values) at the last look
        self.begin()

    def begin(self):
        """A look begins."""
        self.leaves = []
        self.is_done = False

    def before_backward(self, args):
        """Fields of the event, at the first backward of the look."""
        if self.is_done or not args:
            return {}
        self.leaves = _leaves(getattr(args[0], "grad_fn", None))
        idle = self._idle()
        self.looks = self.looks + 1 if idle else 0
        self.kept = {id(leaf): (weakref.ref(leaf), _values(leaf)) for leaf in self.leaves}
        if not idle:
            return {}
        return {
            "graded": _count(self.leaves),
            "stray": _count(idle),
            "stray_names": [_name(leaf) for leaf in idle[: gradients.MAX_NAMES]],
            "stray_looks": self.looks,
        }

    def after_backward(self):
        """The rest of them, at its end."""
        if self.is_done:
            return {}
        self.is_done = True
        leaves, self.leaves = self.leaves, []
        graded = [leaf for leaf in leaves if leaf.grad is not None and late.is_plain(leaf.grad)]
        if not graded:
            return {}
        fields = self.zeros.look(graded)
        if fields:
            fields["zero_gradient_names"] = [
                _name(leaf) for leaf in graded if not leaf.grad.count_nonzero()
            ][: gradients.MAX_NAMES]
        return dict(fields, trainable=_count(graded))

    def _idle(self):
        """Leaves with a gradient from before that are as they were, where others have changed."""
        same = [leaf for leaf in self.leaves if self._is_as_it_was(leaf)]
        if len(same) == len(self.leaves):
            return []
        return [leaf for leaf in same if _has_gradient(leaf)]

    def _is_as_it_was(self, leaf):
        reference, values = self.kept.get(id(leaf), (None, None))
        return reference is not None and reference() is leaf and values == _values(leaf)


def _leaves(node):
    """Leaves on the CPU below a node; none where its graph is large."""
    leaves = graph_leaves.below(node) or ()
    return [leaf for leaf in leaves if leaf.is_cpu and late.is_plain(leaf)][:MAX_LEAVES]


def _has_gradient(leaf):
    gradient = leaf.grad
    return gradient is not None and late.is_plain(gradient) and bool(gradient.count_nonzero())


def _values(leaf):
    return leaf.detach().reshape(-1)[:KEPT_VALUES].tolist()


def _count(leaves):
    return sum(leaf.numel() for leaf in leaves)


def _name(leaf):
    """A module's name of it, else its shape."""
    (name,) = gradients.names([leaf])
    return name or gradients.shape_of(leaf)
