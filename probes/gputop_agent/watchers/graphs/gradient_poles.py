"""Operations of a graph whose gradient is infinite at a point where their value is finite.

That of a root of 0 is; so is that of whatever has a pole where ``torch.where`` leaves its value
out, since 0 times an infinity comes back.
"""

from gputop_agent.runtime import interrupts
from gputop_agent.watchers.graphs.graph_origin import STRUCTURE, is_finite

_POLES = frozenset("sqrt acos asin hypot xlogy".split())
_POLES_LEFT_OUT = frozenset(
    "log log2 log10 log1p div rsqrt reciprocal exp expm1 tan atanh acosh logit".split()
)
_LEAVES_OUT = frozenset("where masked_fill".split())
_AT_ONE = frozenset("acos asin atanh".split())  # whose poles lie at -1 and 1, and not at 0
_CLAMPS = frozenset("clamp clamp_min clamp_max".split())
_KEEPS_OFF = frozenset("clamp clamp_min clamp_max maximum minimum".split())
_REACH = 4  # operations between one that leaves values out and the pole


def guilty(graph):
    """Poles of a graph whose gradients reach those of its parameters that are no numbers, and no
    others: after a clipped gradient all of them are, wherever they lie.
    """
    finite = {node: is_finite(leaf) for node, leaf in _leaves(graph)}
    bad = {node for node, is_good in finite.items() if is_good is False}
    guilty_poles = []
    for pole in poles(graph):
        reached = _below(graph, pole) & finite.keys()
        if reached and reached <= bad and len(bad) in (len(reached), len(finite)):
            guilty_poles.append(pole)
    return guilty_poles


def _leaves(graph):
    """Torch's nodes of its parameters, with them."""
    for function in graph.nodes:
        leaf = getattr(function, "variable", None)
        if leaf is not None:
            yield function, leaf


def _below(graph, pole):
    """Torch's nodes that the gradient of one goes on to."""
    below, todo = set(), list(pole.children)
    while todo:
        function = todo.pop()
        if function in graph.nodes and function not in below:
            below.add(function)
            todo.extend(graph.nodes[function].children)
    return below


def poles(graph):
    """Nodes of a graph that have one which nothing keeps off."""
    behind = _left_out(graph)
    return [
        node
        for node in graph.in_order()
        if node.children and _has_pole(node, node.node in behind) and not _is_kept_off(graph, node)
    ]


def _has_pole(node, is_left_out):
    exponent = _exponent(node.node) if node.name == "pow" else None
    if isinstance(exponent, (int, float)):
        return 0 < exponent < 1 or (is_left_out and exponent < 0)
    return node.name in _POLES or (is_left_out and node.name in _POLES_LEFT_OUT)


def _exponent(function):
    """Of a power by a number."""
    try:
        return getattr(function, "_saved_exponent", None)
    except RuntimeError:  # a tensor's, which the backward has freed
        interrupts.pass_on()
        return None


def _left_out(graph):
    """Torch's nodes whose values go on into one that leaves some out."""
    behind, level = set(), [node for node in graph.nodes.values() if node.name in _LEAVES_OUT]
    for _ in range(_REACH):
        level = [graph.nodes[child] for node in level for child in node.children if child]
        behind.update(node.node for node in level)
    return behind


def _is_kept_off(graph, node):
    """Whether what it is given is cut off, or has a number added to it."""
    below = _given(graph, node)
    while below is not None and below.name in STRUCTURE and below.children:
        below = _given(graph, below)
    if below is None:
        return False
    if below.name in _CLAMPS:
        return _is_within(below.node, at_one=node.name in _AT_ONE)
    adds_number = below.name == "add" and None in below.children
    return adds_number or below.name in _KEEPS_OFF


def _is_within(clamp, at_one):
    """Whether the bounds of a clamp leave the poles out; those that are not told do."""
    lower, upper = (_saved(clamp, f"_saved_{end}") for end in ("min", "max"))
    if at_one:
        return not ((lower is not None and lower <= -1) or (upper is not None and upper >= 1))
    return lower is None or lower > 0


def _saved(function, name):
    """A number that a node keeps; None where it keeps none, or a tensor."""
    try:
        number = getattr(function, name, None)
    except RuntimeError:  # a tensor's, which the backward has freed
        interrupts.pass_on()
        return None
    return number if isinstance(number, (int, float)) else None


def _given(graph, node):
    """Of a division the divisor, else the first."""
    children = node.children[1:] if node.name == "div" else node.children
    return next((graph.nodes[child] for child in children if child in graph.nodes), None)
