"""Values of the user's tensors: at once on the CPU, later from a GPU.

From a GPU they are copied as they are and looked at on the host. A kernel that the training has not
used would be loaded at its first launch, which held up a step on an H200 by 148 ms.
"""

from itertools import accumulate
from typing import Any

from gputop_agent.runtime import interrupts
from gputop_agent.runtime.session import session

MAX_TENSORS, MAX_VALUES = 8, 4096  # gradients or weights that a look reads, and values of each
_ALIGNMENT = 16  # bytes; the largest element has as many


class Late:
    """Values by name, some of them still on their way from a device."""

    def __init__(self):
        self.known = {}  # name -> value
        self._pending = []  # (name, function, copies in pinned memory, event)

    def put(self, name, function, parts):
        """Keep ``function(parts)`` of contiguous tensors of one device.

        It is called at once on a CPU; with copies of them in ``read`` where they lie on a GPU.
        """
        if parts[0].is_cpu:
            self.known[name] = function(parts)
        else:
            self._pending.append((name, function, *_copied(parts)))

    def read(self):
        """The values by name; None while the device has not passed all of them."""
        if not all(event.query() for _, _, _, event in self._pending):
            return None
        for name, function, copies, _ in self._pending:
            self.known[name] = function(copies)
        del self._pending[:]
        return self.known


def _copied(parts):
    """Copies in pinned memory, and the event after which they are complete. Nothing waits."""
    torch = session.torch
    sizes = [part.numel() * part.element_size() for part in parts]
    begins = [0, *accumulate(size + -size % _ALIGNMENT for size in sizes)]
    pinned = torch.empty(begins[-1], dtype=torch.uint8, device="cpu", pin_memory=True)
    copies: Any = []
    with torch.cuda.device(parts[0].device):
        for part, begin, size in zip(parts, begins, sizes):
            copy = pinned[begin : begin + size].view(part.dtype)
            copy.copy_(part.reshape(-1), non_blocking=True)
            copies.append(copy)
        event = torch.cuda.Event()
        event.record()
    return copies, event


def count_nonzero(parts):
    """How many values are not zero."""
    return sum(int(part.count_nonzero()) for part in parts)


def first_number(parts):
    """The value of the only tensor, which has one element."""
    return parts[0].item()


def listed(parts):
    """The values of the only tensor."""
    return parts[0].tolist()


def may_look():
    """Whether our operations on the user's tensors go unnoticed: no mode, no stream capture."""
    torch = session.torch
    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    if modes is None or modes():
        return False
    return not (session.cuda and torch.cuda.is_current_stream_capturing())


def is_plain(tensor):
    """A tensor or parameter of torch's with values in reach: no subclass, sparse or meta."""
    torch = session.torch
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    in_reach = plain and (tensor.is_cpu or tensor.is_cuda) and tensor.is_contiguous()
    return in_reach and has_storage(tensor)


def has_storage(tensor):
    """Whether a strided tensor's memory is there. FSDP takes that of the weights that it gathered
    away while graphs still hold them; to read it would end the process.
    """
    try:
        storage = getattr(tensor, "untyped_storage", tensor.storage)()  # before torch 2.0: typed
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return storage.nbytes() >= (tensor.storage_offset() + last + 1) * tensor.element_size()
    except (RuntimeError, NotImplementedError):  # a function transform's tensor has none
        interrupts.pass_on()
        return False


def spread(tensors):
    """At most ``MAX_TENSORS`` of them, evenly from first to last."""
    return tensors[:: max(1, len(tensors) // MAX_TENSORS)][:MAX_TENSORS]


def local_part(tensor):
    """This rank's part of a DTensor; another tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def some_values(tensors, most):
    """The first values of each tensor, of those that lie with the first one."""
    device = tensors[0].device
    return [tensor.detach().reshape(-1)[:most] for tensor in tensors if tensor.device == device]
