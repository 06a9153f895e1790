"""Backwards that go through a network whose optimizer has no use for its gradients.

A critic's loss reaches the generator where what that made was not detached: gradients of the whole
generator are computed, and cleared before its own update. The part of the graph that leads to such
parameters alone could have been left out. A critic that a generator's loss goes *through* is none
of these: its gradients cost little beside those that are wanted.
"""

from time import monotonic_ns
from typing import Any

from gputop_agent.runtime import frames, guard, late, modes, transport
from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs import graph_leaves
from gputop_agent.watchers.looks import gradients, passed_on

MAX_OPTIMIZERS = 4
MOST_VALUES = 0.9  # of an optimizer's, in the part that could be left out
MIN_LEAVES = 3  # below one of its ends: a layer's own weight and bias make none
SURE_LOOKS = (3, 6)  # in a row: at so many it is told, with the times so far
MAX_TIMES = 16
_OTHERS = -1  # owner of a leaf that is in no optimizer, or in several


class DetachablePart:
    """Of a backward's graph: what leads to parameters of one optimizer alone."""

    def __init__(self, key, nodes, leaves, is_needed_too):
        self.key = key  # of the optimizer
        #: The graph goes through the same network on the way to others' parameters, too.
        self.is_needed_too = is_needed_too
        self.nodes = nodes
        self.leaves = leaves
        self.backward_at = frames.caller_site()
        self.made_at = passed_on.line_of_result(nodes, leaves)
        self.took_ns: Any = None
        self._began = 0
        self._handles = []

    def hook(self, others):
        """Time it, where it runs in one go: autograd begins with what was computed last."""
        numbers = {node._sequence_nr(): node for node in self.nodes if not _is_leaf(node)}
        first, last = max(numbers), min(numbers)
        if any(last < node._sequence_nr() < first for node in others if not _is_leaf(node)):
            return
        self._handles = [
            numbers[first].register_prehook(self._begins),
            numbers[last].register_hook(self._ended),
        ]

    def _begins(self, *_):
        try:
            self._began = monotonic_ns()
        except Exception:
            guard.failed("a part's backward")

    def _ended(self, *_):
        try:
            if self._began:
                self.took_ns = monotonic_ns() - self._began
        except Exception:
            guard.failed("a part's backward")

    def let_go(self):
        """Keep nothing of the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.nodes = [], ()

    def is_cleared(self):
        """Whether its gradients are gone, or zero in what is looked at; on a GPU: gone."""
        gradients_left = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        if not gradients_left:
            return True
        plain = [gradient for gradient in gradients_left if late.is_plain(gradient)]
        if len(plain) < len(gradients_left) or not plain[0].is_cpu:
            return False
        return not late.count_nonzero(late.some_values(late.spread(plain), late.MAX_VALUES))


class Undetached:
    """The look that is going on, and what those before it have seen."""

    def __init__(self):
        self.looks = {}  # id of an optimizer -> looks in a row that found such a backward
        self.found = {}  # the same -> parts of this look whose gradients were cleared
        self.took_ns = {}  # the same -> times of the parts (ns), of all looks
        self.end()

    def begin(self, optimizers):
        """Look at these, where there are several."""
        self.looks = {key: looks for key, looks in self.looks.items() if self.found.get(key)}
        self.found = {}
        self.end()
        if 1 < len(optimizers) <= MAX_OPTIMIZERS:
            self._owners = _owners(optimizers)
            self._names = {id(optimizer): type(optimizer).__name__ for optimizer in optimizers}

    def end(self):
        """Keep nothing of the user's."""
        self._owners: Any = {}  # id of a parameter -> id of its optimizer
        self._names: Any = {}
        self._waiting: Any = []  # parts whose gradients may be used yet
        self._parts: Any = []  # of the backward that is running

    @modes.unseen
    def before_backward(self, args):
        """An outermost backward begins: what others left was cleared, or may be added to."""
        if not self._owners:
            return
        waiting, self._waiting = self._waiting, []
        for part in waiting:
            if part.is_cleared():
                self._tell(part)
            else:
                self._waiting.append(part)
        root = getattr(args[0], "grad_fn", None) if args else None
        if root is not None:
            self._parts = self._parts_below(root)

    def after_backward(self):
        """It has ended."""
        for part in self._parts:
            part.let_go()
        self._waiting += self._parts
        self._parts = []

    def before_update(self, optimizer):
        """The optimizer uses what its parameters have gathered."""
        self._waiting = [part for part in self._waiting if part.key != id(optimizer)]

    def _parts_below(self, root):
        nodes, are_all = graph_leaves.nodes_below(root)
        owned = {node: self._owners.get(id(node.variable), _OTHERS) for node in _leaves(nodes)}
        owners = set(owned.values())
        if not are_all or len(owners) < 2:
            return []
        parents = _parents(nodes)
        parts = []
        for key in owners - {_OTHERS}:
            part = _part(key, owned, parents)
            if part is not None:
                if not session.cuda:
                    part.hook([node for node in nodes if node not in part.nodes])
                parts.append(part)
        return parts

    def _tell(self, part):
        if part.key not in self.found:
            self.looks[part.key] = self.looks.get(part.key, 0) + 1
        self.found.setdefault(part.key, []).append(part)
        if part.took_ns is not None:
            self.took_ns.setdefault(part.key, []).append(part.took_ns)
        if self.looks[part.key] in SURE_LOOKS and len(self.found[part.key]) == 1:
            self._send(part)

    def _send(self, part):
        times_ms = [round(took_ns / 1e6, 4) for took_ns in self.took_ns.get(part.key, ())]
        transport.send_event(
            "undetached",
            step=session.step,
            looks=self.looks[part.key],
            optimizer=self._names[part.key],
            values=sum(leaf.numel() for leaf in part.leaves),
            names=gradients.names(part.leaves[: gradients.MAX_NAMES]),
            took_ms=times_ms[:MAX_TIMES],
            backward_at=part.backward_at,
            made_at=part.made_at,
            is_needed_too=part.is_needed_too,
        )


def _owners(optimizers):
    owners = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                is_shared = id(parameter) in owners
                owners[id(parameter)] = _OTHERS if is_shared else id(optimizer)
    return owners


def _is_leaf(node):
    return getattr(node, "variable", None) is not None


def _leaves(nodes):
    return [node for node in nodes if _is_leaf(node)]


def _parents(nodes):
    """The nodes that hand a gradient to each node."""
    parents = {}
    for node in nodes:
        for child, _ in node.next_functions:
            if child is not None:
                parents.setdefault(child, []).append(node)
    return parents


def _part(key, owned, parents):
    """What leads to leaves of one owner alone; None unless that is nearly all of these leaves."""
    wanted = _above([node for node, owner in owned.items() if owner != key], parents)
    mine = [node for node, owner in owned.items() if owner == key]
    unwanted = _above(mine, parents) - wanted
    ends = [node for node in unwanted if wanted.intersection(parents.get(node, ()))]
    nodes, passed_through = set(), set()
    for end in ends:
        below = set(graph_leaves.nodes_below(end)[0])
        if len(_leaves(below)) >= MIN_LEAVES:
            nodes |= below
        else:  # a layer that the wanted gradients pass through
            passed_through |= below
    most = MOST_VALUES * max(1, _values(mine))
    own = [node for node in reversed(mine) if node in nodes]
    if _values(own) < most:
        return None
    is_needed_too = _values(passed_through.intersection(mine)) >= most
    return DetachablePart(key, nodes, [node.variable for node in own], is_needed_too)


def _values(leaves):
    return sum(node.variable.numel() for node in leaves)


def _above(nodes, parents):
    """These nodes and all that hand gradients on to them."""
    above, todo = set(nodes), list(nodes)
    while todo:
        for parent in parents.get(todo.pop(), ()):
            if parent not in above:
                above.add(parent)
                todo.append(parent)
    return above
