"""Bytes of each layer: own parameters, gradients, optimizer state, and its results."""

import weakref
from typing import Any

from gputop_agent.description import describe_model
from gputop_agent.runtime import interrupts, late
from gputop_agent.runtime.bound import CALL_SLOT
from gputop_agent.runtime.living import alive
from gputop_agent.runtime.session import session

MAX_DEPTH = 4  # of tuples and dicts in which a module's result is looked for
_COMPILED = "OptimizedModule"


def table(layers):
    """``[{"path", "class", "parameter_bytes", "dtype", "trainable", "compiled"}]``, by layer."""
    rows = []
    for index, module in layers.living():
        own_parameters = [
            parameter
            for parameter in _parameters(module)
            if layers.owners.get(id(parameter)) == index
        ]
        row = {
            "path": layers.names[index],
            "class": type(module).__name__,
            "parameter_bytes": sum(map(local_bytes, own_parameters)),
        }
        if own_parameters:
            row["dtype"] = str(own_parameters[0].dtype).replace("torch.", "")
            row["trainable"] = any(parameter.requires_grad for parameter in own_parameters)
        if _is_compiled(module):
            row["compiled"] = True
        rows.append(row)
    return rows


def _is_compiled(module):
    if type(module).__name__ == _COMPILED:
        return True
    slot = module.__dict__.get(CALL_SLOT)
    while slot is not None and hasattr(slot, "inner"):
        slot = slot.inner
    return slot is not None


def _parameters(module):
    parameters = module.__dict__.get("_parameters") or {}
    return [parameter for parameter in parameters.values() if parameter is not None]


def local_bytes(tensor):
    """Bytes of a tensor on this rank, or its shard. Asks nothing of what is not there yet."""
    try:
        tensor = late.local_part(tensor)
        return tensor.numel() * tensor.element_size()
    except (RuntimeError, ValueError, TypeError):
        interrupts.pass_on()
        return 0


def gradient_bytes(layers):
    """Gradients that are held now, by layer."""
    sizes = [0] * len(layers.modules)
    for index, module in layers.living():
        for parameter in _parameters(module):
            if layers.owners.get(id(parameter)) == index and parameter.grad is not None:
                sizes[index] += local_bytes(parameter.grad)
    return sizes


def optimizer_bytes(layers):
    """Optimizer state of more than one value, by layer."""
    states = [optimizer.state for optimizer in alive(session.optimizers.values())]
    sizes = [0] * len(layers.modules)
    for index, module in layers.living():
        for state_ in _parameters(module):
            if layers.owners.get(id(state_)) != index:
                continue
            for state in states:
                values = state[state_].values() if state_ in state else ()
                sizes[index] += sum(
                    local_bytes(value) for value in values if _is_tensor(value) and value.dim()
                )
    return sizes


class Outputs:
    """Bytes that calls gave, and their type. What a call passes on, of its inputs or of calls
    within it, counts once.
    """

    def __init__(self, count):
        self.bytes = [0] * count
        self.dtypes: "list[Any]" = [None] * count
        # for each open call: (address, weak reference to a tensor) of what is there already
        self._within = []

    def begin(self, args):
        """A call begins."""
        self._within.append(list(_placed(args)))

    def end(self, layer, result):
        """A call of the layer has returned ``result``."""
        within = self._within.pop()
        there = {storages for storages, _, reference in within if reference() is not None}
        results = list(_placed(result))
        for storages, size, reference in results:
            tensor = reference()
            if self.dtypes[layer] is None and tensor is not None:
                self.dtypes[layer] = str(tensor.dtype).replace("torch.", "")
            if storages not in there:
                there.add(storages)
                self.bytes[layer] += size
        if self._within:
            self._within[-1] += results


def _placed(value):
    """``(address, bytes, weak reference)`` of the storages of tensors."""
    for tensor in tensors_in(value):
        local = late.local_part(tensor)
        try:
            storage = local.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError, AttributeError):
            interrupts.pass_on()
            continue
        if address:
            yield address, size, weakref.ref(tensor)


def tensors_in(result, depth=0):
    """Tensors in what a module takes or gives: alone, in tuples, lists, dicts and objects."""
    if _is_tensor(result):
        yield result
        return
    if depth >= MAX_DEPTH or result is None:
        return
    if isinstance(result, dict):
        result = list(result.values())
    elif isinstance(result, (tuple, list)):
        result = list(result)
    else:
        result = list((getattr(result, "__dict__", None) or {}).values())[:16]
    for part in result[:64]:
        for tensor in tensors_in(part, depth + 1):
            yield tensor


def _is_tensor(value):
    return isinstance(value, session.torch.Tensor)


def checkpoints(layers):
    """Indexes of layers whose wrapper has them recomputed."""
    return {
        index
        for index, module in layers.living()
        if "CheckpointWrapper" in describe_model.wrappers(module)
    }
