"""Which operation gave the first value that is not finite, from autograd's graph of a loss.

Each node has the tensors that it saved for its backward: its inputs, its result, or neither. What a
node saved of an input tells of the node before it. From the loss down along what is not finite, the
last node whose inputs are all finite is the origin. Where nodes without anything saved lie between,
that one is named which can turn finite values into others. Tensors that hooks of the user's have
packed (checkpoints, offloading) are not asked for.
"""

import math
import re
from typing import Any

from gputop_agent.runtime import interrupts, late
from gputop_agent.runtime.session import session

MAX_NODES = 100_000
_RAW = "_raw_saved_"
_RESULTS = re.compile(r"result\d?|output|out|values|logsumexp")
_PLACES = {
    "self": 0,
    "input": 0,
    "query": 0,
    "mat1": 0,
    "batch1": 0,
    "other": 1,
    "mat2": 1,
    "batch2": 1,
    "weight": 1,
    "exponent": 1,
    "target": 1,
    "key": 1,
    "value": 2,
    "bias": 2,
}
_ADDED_TO = ("addmm", "baddbmm", "addbmm", "addmv")  # the first argument is what is added
_TABLES = ("nll_loss", "embedding")  # ``weight`` is no input that gets gradients
#: can turn finite values into others: at a pole or outside of where they are defined, or
#: by overflow
_SINGULAR = (
    "log div sqrt rsqrt pow reciprocal norm acos asin atanh acosh atan2 std var tan lgamma digamma "
    "exp expm1 sinh cosh softmax log_softmax logsumexp scaled_dot_product cdist prod logit erfinv "
    "binary_cross_entropy nll_loss linalg_inv linalg_solve cholesky svd eigh xlogy normalize"
).split()
STRUCTURE = (
    "t transpose permute expand view reshape unsafe_view alias to_copy slice split unsqueeze "
    "squeeze clone neg select split_with_sizes cat stack accumulate_grad index"
).split()
#: give values that they took and no others
SAME_VALUES = (
    "t transpose permute expand view reshape reshape_alias unsafe_view alias slice unsqueeze "
    "squeeze clone neg select"
).split()
#: finite where all that they take is, beside places and masks
_COPIES = (*SAME_VALUES, "embedding", "cat", "stack", "index", "index_select", "gather", "where")
_PICKS = ("gather", "index", "index_select", "where", "masked_fill")  # give some of what they took
#: of an infinity they give one, or NaN; what others make of one may be finite again
_CARRY_INFINITY = (
    "mul mm addmm mv addmv bmm baddbmm addbmm convolution mse_loss l1_loss smooth_l1_loss "
    "huber_loss binary_cross_entropy_with_logits"
).split()
_MASKS = ("log_softmax", "masked_fill", "where")  # give infinities on purpose
_REPEATABLE = ("log", "log2", "log10", "log1p", "acos", "asin", "atanh", "acosh", "lgamma", "tan")


def operation(node):
    """``"log_softmax"`` of a ``LogSoftmaxBackward0``."""
    name = re.sub(r"Backward\d*$", "", node.name().rpartition("::")[2])
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def weight_of(name):
    """How likely an operation is an origin: 2 at a pole, 1 by overflow, 0 hardly ever."""
    if any(name == ending or name.endswith("_" + ending) for ending in _SINGULAR):
        return 2
    if name.startswith(("linalg_", "scaled_dot_product", "binary_cross")):
        return 2
    return 0 if name in STRUCTURE else 1


class Node:
    """A node of the graph, and what its saved tensors say."""

    __slots__ = (
        "children", "given", "inputs", "name", "node", "number", "result", "suspects", "unowned"
    )  # fmt: skip

    def __init__(self, node):
        self.node = node
        self.number = node._sequence_nr()
        self.name = operation(node)
        self.children = [child for child, _ in node.next_functions]
        self.inputs: Any = []  # (place among the children or None, tensor)
        self.result: Any = None  # what it gave, where it was saved
        self.given: Any = None  # whether what it gave is finite: True, False, None for not known
        self.unowned: Any = None  # an input that is not finite and that no other node gave
        self.suspects: Any = ()  # numbers of the nodes that it was chosen from as the likeliest


def _note_result(node, tensor, finite):
    node.given = finite if node.given is None else node.given and finite
    if node.result is None or not finite:
        node.result = tensor


class Graph:
    """Nodes below a loss. ``nodes`` by torch's node; with a range, others are looked through."""

    def __init__(self, loss, reads_tensors=True):
        self.nodes = {}
        self.root = loss.grad_fn
        todo = [self.root] if self.root is not None else []
        while todo and len(self.nodes) < MAX_NODES:
            function = todo.pop()
            if function in self.nodes:
                continue
            self.nodes[function] = node = Node(function)
            todo.extend(child for child in node.children if child is not None)
        if reads_tensors:
            for node in self.nodes.values():
                self._read(node)
            in_order = self.in_order()
            for node in in_order:
                self._judge(node)
            for node in reversed(in_order):
                self._judge_giver(node)

    def in_order(self):
        """Nodes as their operations ran; leaves come first."""
        return sorted(self.nodes.values(), key=lambda node: node.number if node.children else -1)

    def _read(self, node):
        if not node.children:
            leaf = getattr(node.node, "variable", None)
            if leaf is not None:
                node.result, node.given = leaf.detach(), is_finite(leaf)
            return
        for name in dir(node.node):
            if name.startswith(_RAW):
                tensor = saved(node.node, name)
                if tensor is not None:
                    self._note(node, name[len(_RAW) :], tensor)

    def _note(self, node, name, tensor):
        finite = is_finite(tensor)
        if finite is None and (tensor.is_floating_point() or tensor.is_sparse):
            return
        finite = finite is not False  # whole numbers always are
        if _RESULTS.fullmatch(name):
            if tensor.is_floating_point() or tensor.is_complex():  # places say nothing of values
                _note_result(node, tensor, finite)
            return
        if name == "per_sample_weights" and not finite:
            node.unowned = tensor
        position = _PLACES.get(name)
        if position is None or (name == "weight" and node.name.startswith(_TABLES)):
            return
        if node.name in _ADDED_TO:
            position += 1
        node.inputs.append((position, tensor))
        self._note_giver(node, position, tensor, finite)

    def _note_giver(self, node, position, tensor, finite):
        """What a node was given is what the one below it gave."""
        child = node.children[position] if position < len(node.children) else None
        giver = self.nodes.get(child)
        if giver is None:
            if not finite:
                node.unowned = tensor
        elif giver.given is None or not finite:
            giver.given = finite
            giver.result = tensor

    def _judge(self, node):
        """What is not known follows from what it was given: a NaN stays one, which an infinity (a
        mask's) need not.
        """
        bad = self.bad_children(node)
        if node.name in _PICKS and not any(_has_nan(child.result) for child in bad):
            return
        if node.given is None and (bad or _is_carried(node)):
            node.given = False
        elif node.given is None and node.name in _COPIES and self._is_all_finite(node):
            node.given = True

    def _is_all_finite(self, node):
        """Whether all that other nodes gave it is known to be finite, and nothing else came in."""
        givers = [self.nodes.get(child) for child in node.children if child is not None]
        if len(givers) < len(node.children):
            return False
        return all(giver is not None and giver.given for giver in givers)

    def _judge_giver(self, node):
        """What a view has of values that are not finite, its base has too."""
        if node.given is not False or node.name not in SAME_VALUES:
            return
        giver = self.nodes.get(node.children[0])
        if giver is not None and giver.given is None:
            giver.given, giver.result = False, node.result

    def bad_children(self, node):
        """Nodes that gave it what is not finite."""
        givers = [self.nodes.get(child) for child in node.children if child is not None]
        return [child_ for child_ in givers if child_ is not None and child_.given is False]

    def origin(self, within=None):
        """The node at which values stopped being finite; None without a graph, and where nothing is
        known of its values (``shows_saved``).

        Args:
            within: ``within(number)`` tells whether a node may be the origin, by its sequence
                number.
        """
        if not shows_saved():
            return None
        origin = self._origin(within)
        if origin is not None and _hardly_ever(origin) and self._let_picks_carry():
            origin = self._origin(within)
        return origin

    def _origin(self, within):
        root = self.nodes.get(self.root)
        if root is None:
            return None
        root.given = False
        candidates = [
            node
            for node in _firsts([root], self._causes)
            if within is None or not node.children or within(node.number)
        ]
        if not candidates:
            return None
        first = min(candidates, key=lambda node: node.number if node.children else -1)
        if first.unowned is not None or not first.children:
            return first
        return self._likeliest(first)

    def _let_picks_carry(self):
        """Where nothing above them makes such values, what picks some of what it took has picked an
        infinity. Returns whether there is such an operation.
        """
        picks = [
            node
            for node in self.in_order()
            if node.name in _PICKS and node.given is None and self.bad_children(node)
        ]
        for node in picks:
            node.given = False
        for node in self.in_order() if picks else ():
            self._judge(node)
        return bool(picks)

    def _causes(self, node):
        """Its bad children, none where NaN begins at it."""
        bad = self.bad_children(node)
        return [] if bad and self._is_zero_times_mask(node) else bad

    def _is_zero_times_mask(self, node):
        """Whether it multiplies infinities that stand for what is left out, as the logarithm of a
        probability of 0, by zeros: then NaN begins here. What it gives is noted.
        """
        inputs = dict(node.inputs)
        if node.name != "mul" or len(inputs) < 2 or any(map(_has_nan, inputs.values())):
            return False
        firsts = _firsts(self.bad_children(node), self.bad_children)
        if any(first.name not in _MASKS for first in firsts):
            return False
        with session.torch.no_grad():
            product = inputs[0] * inputs[1]
        if not _has_nan(product):
            return False
        node.result = product
        return True

    def likeliest_name(self, within):
        """The operation among those ``within`` a call that most likely gave such values, the first
        of several; None where the graph has none of them.
        """
        inside = [node for node in self.in_order() if node.children and within(node.number)]
        likeliest = max(inside, key=lambda node: weight_of(node.name), default=None)
        return None if likeliest is None else likeliest.name

    def _likeliest(self, origin):
        """Of a node and those before it with nothing known, the one that most likely did it."""
        region, todo, visited = [], [origin], set()
        while todo:
            node = todo.pop()
            if node.node in visited:
                continue
            visited.add(node.node)
            region.append(node)
            if node.unowned is not None or (node is origin and _is_sure(node)):
                continue
            for child in node.children:
                giver = self.nodes.get(child)
                if giver is not None and giver.children and giver.given is None:
                    todo.append(giver)
        likeliest = max(region, key=lambda node: (_repeats(node), _weight(node), node.number))
        if _repeats(likeliest) < 1:
            likeliest.suspects = [node.number for node in region if node.children]
        return likeliest


def _firsts(start, causes):
    """The nodes that ``causes(node)`` leads to from those of ``start``, and no further."""
    firsts, visited, todo = [], set(), list(start)
    while todo:
        node = todo.pop()
        if node.node in visited:
            continue
        visited.add(node.node)
        further = causes(node)
        todo.extend(further)
        if not further:
            firsts.append(node)
    return firsts


def _weight(node):
    """As ``weight_of``; a cast to float16 overflows far sooner than what comes before it."""
    is_half = node.result is not None and node.result.dtype is session.torch.float16
    return 2 if node.name == "to_copy" and is_half else weight_of(node.name)


def _hardly_ever(node):
    """Whether an operation is one that nearly always gives finite values where it took such."""
    is_singular = weight_of(node.name) > 1 or _repeats(node) > 0
    return bool(node.children) and node.unowned is None and not is_singular


def _is_sure(node):
    """Whether all that other nodes gave it was saved, and so is finite."""
    places = {position for position, _ in node.inputs}
    return all(child is None or position in places for position, child in enumerate(node.children))


def _repeats(node):
    """Whether the operation on what it saved gives values that are not finite: 1, -1 where it does
    not, 0 where that is not known.
    """
    torch, inputs = session.torch, dict(node.inputs)
    with torch.no_grad():
        if node.name in _REPEATABLE and 0 in inputs:
            if is_finite(getattr(torch, node.name)(inputs[0])):
                return -1
            return 1
        if node.name == "div" and 1 in inputs:
            return 1 if (inputs[1] == 0).any().item() else -1
    return 0


def shows_saved():
    """Whether this torch shows what a graph saved, and whether a hook has packed it; 2.9 and before
    do neither, and to unpack it could run a checkpoint's forward again.
    """
    return hasattr(session.torch._C._autograd.SavedTensor, "data")


def saved(node, name):
    """A tensor that the node saved, no hook has packed and nobody freed; None for any other."""
    try:
        raw = getattr(node, name)
        if getattr(raw, "unpack_hook", node) is not None:
            return None
        return raw.data.detach() if _is_there(raw.data) else None
    except (RuntimeError, AttributeError, TypeError):
        interrupts.pass_on()
        return None


def _is_there(tensor):
    is_strided = tensor.layout is session.torch.strided
    return not is_strided or late.has_storage(late.local_part(tensor))


def is_finite(tensor):
    """Whether all values are finite; None where that cannot be asked."""
    extremes = extent(tensor)
    if extremes is None:
        return None
    low, high = (number.item() for number in extremes)
    return low - low == 0 and high - high == 0


def is_mask(tensor):
    """Whether all that is not finite is -inf, as in an additive mask of attention."""
    extremes = extent(tensor)
    if extremes is None:
        return False
    low, high = (number.item() for number in extremes)
    return low == -math.inf and high < math.inf


def _is_carried(node):
    """Whether what the node took and no other gave makes its result not finite."""
    if node.unowned is None:
        return False
    return node.name in _CARRY_INFINITY or _has_nan(node.unowned)


def _has_nan(tensor):
    extremes = extent(tensor) if tensor is not None else None
    return extremes is not None and bool(extremes[0].isnan())


def extent(tensor):
    """The smallest and the largest value, as tensors of one element, NaN where one is in it; None
    where there are no such values in reach.
    """
    tensor = late.local_part(tensor)
    try:
        if not tensor.is_floating_point() or not tensor.numel() or tensor.is_sparse:
            return None
        if not (tensor.is_cpu or tensor.is_cuda) or not late.has_storage(tensor):
            return None
        return session.torch.aminmax(tensor.detach())
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        interrupts.pass_on()
        return None


def value_name(low, high):
    """What is not finite in an extent: ``NaN``, ``inf``, ``-inf``; None where all is."""
    if low != low or high != high:
        return "NaN"
    if high - high != 0:
        return "inf" if high > 0 else "-inf"
    return "-inf" if low - low != 0 else None
