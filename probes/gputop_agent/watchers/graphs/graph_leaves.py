"""Nodes and leaves of a graph that a backward from one of its nodes reaches."""

MAX_NODES = 5000


def nodes_below(node):
    """The node and those below it, each once, in no order, and whether these are all: the search
    ends where it knows more than ``MAX_NODES``.
    """
    todo, visited, nodes = [node], {node}, []
    while todo:
        if len(visited) > MAX_NODES:
            return nodes, False
        current = todo.pop()
        nodes.append(current)
        for following, _ in getattr(current, "next_functions", ()):
            if following is not None and following not in visited:
                visited.add(following)
                todo.append(following)
    return nodes, True


def leaves_of(nodes):
    """The leaves among nodes."""
    leaves = (getattr(node, "variable", None) for node in nodes)
    return [leaf for leaf in leaves if leaf is not None]


def below(node):
    """The leaves, each once, in no order; None where the graph is larger than ``MAX_NODES``."""
    nodes, are_all = nodes_below(node)
    return leaves_of(nodes) if are_all else None
