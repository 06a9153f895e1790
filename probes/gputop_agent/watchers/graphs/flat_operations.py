"""Operations whose gradient is zero wherever they have one, between parameters and a loss."""

import re

from gputop_agent.runtime import source
from gputop_agent.watchers.graphs import graph_leaves

_FLAT = re.compile(r"(Round|Floor|Ceil|Trunc|Sign|Sgn|Heaviside)Backward\d+")


class FlatOperations:
    """What the graph of the last loss had of them."""

    def __init__(self):
        self._below = []  # (operation, ids of the parameters that its gradient goes to)

    def before_backward(self, args):
        """Go through the graph of a loss."""
        root = getattr(args[0], "grad_fn", None) if args else None
        nodes = graph_leaves.nodes_below(root)[0] if root is not None else ()
        self._below = [
            (_operation(node), _parameters_below(node))
            for node in nodes
            if _FLAT.fullmatch(node.name())
        ]

    def of(self, parameters):
        """``{"zero_gradient_by": "round", "zero_gradient_made_at": "model.py:9"}`` of the one kind
        of operation that gives all of these parameters their gradient, and the only line that may
        call it; empty without.
        """
        wanted = {id(parameter) for parameter in parameters}
        kinds = {operation for operation, below in self._below if wanted <= below}
        if len(kinds) != 1:
            return {}
        (operation,) = kinds
        made_at = source.place_matching(r"\.%s_?\(" % operation)
        return {"zero_gradient_by": operation, "zero_gradient_made_at": made_at}


def _operation(node):
    return node.name().partition("Backward")[0].lower()


def _parameters_below(node):
    nodes, _ = graph_leaves.nodes_below(node)
    return {id(leaf) for leaf in graph_leaves.leaves_of(nodes)}
