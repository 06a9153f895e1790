"""The extents of what layers give and of the gradients that come back, in one pass.

Each call of a layer notes smallest and largest value of its inputs and results, and a hook on the
node that made a tensor notes those of its gradient. On a GPU they stay on the device until they are
asked for. Tensors themselves are not held.
"""

import weakref
from typing import Any

from gputop_agent.runtime import guard, interrupts, modes
from gputop_agent.runtime.bound import bound
from gputop_agent.runtime.session import session
from gputop_agent.timing.step_state import open_step
from gputop_agent.watchers.graphs import graph_origin
from gputop_agent.watchers.layers import layer_sizes

MAX_CALLS = 20_000


class LayerCall:
    """A call of a layer. Points are indexes into the pass's."""

    __slots__ = ("begin", "end", "inputs", "layer", "operation", "parent", "results", "within")

    def __init__(self, layer, parent, begin):
        self.layer = layer
        self.parent = parent  # the call around it
        self.begin = begin  # sequence numbers of autograd
        self.end = begin
        self.inputs = []
        self.results = []
        self.within = []  # calls in it
        self.operation = ""  # that made the first result


class TensorPoint:
    """A tensor between operations."""

    __slots__ = ("dtype", "extent", "gradient", "maker", "number", "place")

    def __init__(self, place, dtype, extent, maker):
        self.place = place
        self.dtype = dtype
        self.extent = extent  # tensors, later numbers
        self.gradient: Any = None
        self.maker = maker  # the call around the operation that made it
        self.number = 0


class Pass:
    """Forwards up to a backward, and that backward."""

    def __init__(self, layers):
        self.layers = layers
        self.calls = []  # in the order in which they ended
        self.points = []
        self.backward = []  # (point, extent of its gradient), in the order of the backward
        self.skipped = 0  # depth of calls that are not watched
        self.is_over = False  # its backward has ended
        self.is_explained = False
        self.loss: Any = None  # its extent, where it lies on a GPU
        self.step = -1
        self.batch: Any = None
        self._open = []
        self._by_tensor = {}  # (id, version) -> (weak reference, point)
        self._handles = []
        self._sequence = session.torch._C._autograd._get_sequence_nr

    # ---- the observer of layers

    def enter(self, layer, args, kwargs):
        """A layer is called."""
        if self.skipped or not self._may_watch():
            self.skipped += 1
            return
        call = LayerCall(layer, self._open[-1] if self._open else None, self._sequence())
        call.inputs = self._note(args, call.parent) + self._note(kwargs, call.parent)
        self._open.append(call)

    def leave(self, layer, result):
        """Its call has ended."""
        if self.skipped:
            self.skipped -= 1
            return
        if not self._open:
            return
        call = self._open.pop()
        call.end = self._sequence()
        call.results = self._note(result, call)
        self.calls.append(call)
        if call.parent is not None:
            call.parent.within.append(call)

    def _may_watch(self):
        if open_step.in_backward or len(self.calls) > MAX_CALLS:
            return False
        if not bound.is_grad_enabled() or bound.count_dispatch_modes():
            return False
        functorch = getattr(session.torch._C, "_functorch", None)
        if functorch is not None and functorch.peek_interpreter_stack() is not None:
            return False
        return not (session.cuda and session.torch.cuda.is_current_stream_capturing())

    @property
    def is_open(self):
        """Whether a call goes on."""
        return bool(self._open) or self.skipped > 0

    def _note(self, value, maker):
        points = [self._point(tensor, maker) for tensor in layer_sizes.tensors_in(value)]
        return [point for point in points if point is not None]

    def _point(self, tensor, maker):
        key = id(tensor), _version(tensor)
        reference, point_ = self._by_tensor.get(key, (None, None))
        if reference is not None and reference() is tensor:
            return point_
        extent = graph_origin.extent(tensor)
        if extent is None:
            return None
        point = TensorPoint(len(self.points), tensor.dtype, extent, maker)
        self.points.append(point)
        self._by_tensor[key] = weakref.ref(tensor), point
        node = _maker(tensor)
        if node is not None:
            point.number = node._sequence_nr()
            if maker is not None and not maker.operation:
                maker.operation = graph_origin.operation(node)
            self._handles.append(node.register_prehook(self._gradient_noter(point)))
        return point

    def _gradient_noter(self, point):
        def hook(gradients):
            try:
                self._note_gradient(point, gradients)
            except Exception:
                guard.failed("numerics backward")

        guard.hide(hook)
        return hook

    @modes.unseen
    def _note_gradient(self, point, gradients):
        if self.is_over or bound.count_dispatch_modes():
            return
        for gradient in gradients:
            if gradient is not None:
                extent = graph_origin.extent(gradient)
            else:
                extent = None
            if extent is not None:
                point.gradient = extent
                self.backward.append((point, extent))

    # ---- afterwards

    def take_out(self):
        """Leave no hook of ours in a graph."""
        for handle in self._handles:
            handle.remove()
        del self._handles[:]
        self._by_tensor.clear()

    def tensors(self):
        """All extents, as pairs of tensors of one element."""
        return [point.extent for point in self.points] + [extent for _, extent in self.backward]

    def fill(self, values):
        """Put numbers in place of the tensors, in the order of ``tensors``."""
        for point, value in zip(self.points, values):
            point.extent = value
        gradients = values[len(self.points) :]
        self.backward = [(point, value) for (point, _), value in zip(self.backward, gradients)]
        for point, value in self.backward:
            point.gradient = value


guard.hide(Pass._gradient_noter)


def _maker(tensor):
    """The node that made a tensor; asking a view for it may fail where it was changed in place."""
    try:
        return tensor.grad_fn if tensor.requires_grad else None
    except RuntimeError:
        interrupts.pass_on()
        return None


def _version(tensor):
    try:
        return tensor._version
    except RuntimeError:  # of inference
        interrupts.pass_on()
        return 0


def numbers(pairs):
    """Pairs of tensors of one element as pairs of floats; waits for a device."""
    return [(low.item(), high.item()) for low, high in pairs]


def all_finite(pairs):
    """Whether all are finite, by one operation; they lie on one device."""
    if not pairs:
        return True
    together = session.torch.stack([extreme for pair in pairs for extreme in pair])
    low, high = (extreme.item() for extreme in session.torch.aminmax(together))
    return low - low == 0 and high - high == 0


def is_bad(pair):
    """Whether an extent (numbers) is not finite."""
    return pair is not None and graph_origin.value_name(*pair) is not None


def largest(pair):
    """Absolute maximum of an extent (numbers)."""
    return max(abs(pair[0]), abs(pair[1]))
