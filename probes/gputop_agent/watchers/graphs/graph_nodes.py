"""What autograd's nodes tell of the operations that made them."""

MAX_NODES = 400  # of a graph
SAME_VALUES = {
    "ToCopyBackward0",
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "SelectBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
}
"""Backwards that hand values on as they are."""


def below(node, most=MAX_NODES):
    """Nodes of a loss's graph, nearest first, no more than about ``most``; without those that add a
    gradient up.
    """
    todo = [node]
    visited = {node}
    for reached in todo:
        if len(todo) >= most:
            break
        for following, _ in getattr(reached, "next_functions", ()):
            if following is not None and following not in visited and following.next_functions:
                visited.add(following)
                todo.append(following)
    return todo


def first_input(node):
    """The node that gave the first argument; None where it has no graph."""
    return node.next_functions[0][0] if node.next_functions else None


def shape(node):
    """Of what an operation gave, as autograd keeps it since torch 2.1; else empty."""
    metadata = getattr(node, "_input_metadata", None) or ()
    return tuple(metadata[0].shape) if len(metadata) == 1 else ()
