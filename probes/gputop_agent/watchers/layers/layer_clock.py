"""Self times of layers in one step: forward by their calls, backward by the nodes of the graph.

Each node of autograd's graph has a sequence number, which grows as operations run. The numbers at
which calls began and ended tell whose a node is. Before it runs, a hook on the node says so: the
time up to the next hook is its own. What the hooks themselves take is nobody's. On CUDA an event is
recorded where a layer changes, on the stream in use.
"""

from _thread import get_ident
from bisect import bisect_right
from time import monotonic_ns

from gputop_agent.runtime import guard
from gputop_agent.runtime.session import session

FORWARD, BACKWARD = 0, 1
OUTSIDE = -1  # no module: the last place of the lists
MAX_NODES = 100_000


class LayerClock:
    """Times of a step: ``self_ns[way][layer]`` (ns); the last entry lies outside modules."""

    def __init__(self, count, owners, uses_device=False):
        self.self_ns = [[0] * (count + 1), [0] * (count + 1)]
        self.hook_ns = [0, 0]
        self.calls = [0] * count
        self.recomputed = set()
        self.way = FORWARD
        self.nodes = 0
        self.is_running = False
        self._current = OUTSIDE
        self._stack = []
        self._last_ns = 0
        self._marks = {}  # thread -> (sequence numbers, layers from there on)
        self._owners = owners
        self._handles = []
        self._sequence = session.torch._C._autograd._get_sequence_nr
        self._switches = {}  # layer -> the hook of its nodes
        self.device = DeviceTrail() if uses_device else None

    # ---- forward

    def stop(self):
        """A call begins or ends: what is looked at until ``enter`` or ``leave`` is no layer's time.
        At the outermost call that lies outside of the phase, and is not counted.
        """
        now_ns = monotonic_ns()
        if self.is_running:
            self._book(now_ns)
        return now_ns

    def enter(self, layer, stopped):
        """A call of a layer begins; the outermost of a forward starts the clock."""
        began = stopped if self.is_running else monotonic_ns()
        self._stack.append((self._current, self.is_running))
        self.is_running = True
        self.calls[layer] += self.way == FORWARD
        if self.way == BACKWARD:
            self.recomputed.add(layer)
        self._go_to(layer)
        self._mark(layer)
        self._resume(began)

    def leave(self, stopped):
        """The call ends."""
        layer, self.is_running = self._stack.pop()
        self._go_to(layer)
        self._mark(layer)
        self._resume(stopped if self.is_running else monotonic_ns())

    def forget_open_call(self):
        """The step has ended in the call of a root: that call is the next step's."""
        if self.is_running and self.way == FORWARD:
            self.calls[self._current] -= 1

    # ---- backward

    def backward_begins(self):
        """Times from here on are the backward's."""
        self.way, self.is_running = BACKWARD, True
        self._go_to(OUTSIDE)
        self._last_ns = monotonic_ns()

    def backward_ended(self):
        """Take the hooks away again."""
        self._book(monotonic_ns())
        self.is_running = False  # first: what the device does from here on is no backward
        self._go_to(OUTSIDE)
        self.way = FORWARD
        self.remove_hooks()

    def remove_hooks(self):
        """Leave no hook of ours in a graph."""
        for handle in self._handles:
            handle.remove()
        del self._handles[:]

    def hook_nodes(self, tensors, is_outermost):
        """Put a hook on every node below. After the last of a backward inside another one, the time
        is again that of the layer whose backward began it; hooking such a graph is nobody's.
        """
        began = self.stop()
        first = self._hook_below(tensors)
        if first is not None:  # the engine's own end is no layer's
            following = self._outside if is_outermost else self._switch_to(self._current)
            self._handles.append(first.register_hook(following))
        if self.is_running:
            self._resume(began)

    def _hook_below(self, tensors):
        """Hook all nodes; the one whose operation ran first, as its backward comes last."""
        first = None
        visited = set()
        ends = [getattr(tensor, "grad_fn", None) for tensor in tensors]
        todo = [node for node in ends if node]
        sequences, layers = self._marks.get(get_ident(), ([], []))
        while todo and len(visited) < MAX_NODES:
            node = todo.pop()
            if node in visited:
                continue
            visited.add(node)
            following = [child for child, _ in node.next_functions if child is not None]
            if not following and hasattr(node, "variable"):
                continue  # a gradient is accumulated right after the node that gave it
            number = node._sequence_nr()
            layer = _layer_at(number, sequences, layers)
            self._handles.append(node.register_prehook(self._switch_to(layer)))
            if first is None or number < first[0]:
                first = number, node
            todo.extend(following)
        self.nodes += len(visited)
        return first[1] if first is not None else None

    def hook_results(self, tensors):
        """Hooks on a layer's results, such as FSDP's that gather its weights, run before those on
        the node: their time is that of the operation that gave the result.
        """
        marks = self._marks.get(get_ident(), ([], []))
        for tensor in tensors:
            node, hooks = tensor.grad_fn, tensor._backward_hooks
            if node is None or not hooks:
                continue
            switch = self._switch_to(_layer_at(node._sequence_nr(), *marks))
            other_hooks = list(hooks.items())
            hooks.clear()  # the engine goes by the order of insertion
            try:
                self._handles.append(tensor.register_hook(switch))
            finally:
                hooks.update(other_hooks)

    def _switch_to(self, layer):
        switch = self._switches.get(layer)
        if switch is not None:
            return switch

        def hook(*_):
            try:
                self.switch(layer)
            except Exception:
                guard.failed("layer backward")

        guard.hide(hook)
        self._switches[layer] = hook
        return hook

    def _outside(self, *_):
        try:
            self.switch(OUTSIDE)
        except Exception:
            guard.failed("layer backward")

    def switch(self, layer):
        """A node of another layer runs."""
        if layer == self._current or self.way == FORWARD:
            return
        began = monotonic_ns()
        self._book(began)
        self._go_to(layer)
        self._resume(began)

    # ---- both

    @property
    def current(self):
        """The layer that runs."""
        return self._current

    def _book(self, now):
        self.self_ns[self.way][self._current] += now - self._last_ns

    def _go_to(self, layer):
        self._current = layer
        if self.device is not None:
            self.device.mark(self.way, layer if self.is_running else None)

    def _resume(self, began):
        self._last_ns = now_ns = monotonic_ns()
        self.hook_ns[self.way] += now_ns - began

    def _mark(self, layer):
        sequences, layers = self._marks.setdefault(get_ident(), ([], []))
        sequences.append(self._sequence())
        layers.append(layer)


guard.hide(LayerClock._outside)


def _layer_at(number, sequences, layers):
    """The layer that ran when autograd's count was at ``number``."""
    index = bisect_right(sequences, number) - 1
    return layers[index] if index >= 0 else OUTSIDE


class DeviceTrail:
    """Events on the device where a layer changes; read some steps later without waiting."""

    def __init__(self):
        self._marks = []  # (event, way, layer from here on; None: nothing that is timed)

    def mark(self, way, layer):
        """Record an event on the current stream."""
        event = session.torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((event, way, layer))

    def is_read(self):
        """Whether the device has passed all of them."""
        return all(event.query() for event, _, _ in self._marks[-1:])

    def times_ns(self, count):
        """Times between events, as ``LayerClock.self_ns``."""
        times = [[0] * (count + 1), [0] * (count + 1)]
        for (event, way, layer), (following, _, _) in zip(self._marks, self._marks[1:]):
            if layer is not None:
                times[way][layer] += int(event.elapsed_time(following) * 1e6)
        return times
