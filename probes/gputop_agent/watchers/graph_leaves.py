"""Leaves of a graph that a backward from one of its nodes reaches."""

MAX_NODES = 5000


def below(node):
    """The leaves, each once, in no order; None where the graph is larger than ``MAX_NODES``."""
    todo, visited, leaves = [node], {node}, []
    while todo:
        if len(visited) > MAX_NODES:
            return None
        current = todo.pop()
        leaf = getattr(current, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        for following, _ in getattr(current, "next_functions", ()):
            if following is not None and following not in visited:
                visited.add(following)
                todo.append(following)
    return leaves
