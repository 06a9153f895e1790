"""Single values of our tensor operations: read at once on the CPU, later on a GPU."""

from gputop_agent.runtime.session import session


class Late:
    """Values by name, some of them still on their way from a device."""

    def __init__(self):
        self.known = {}  # name -> number
        self._pending = []  # (name, pinned tensor, event)

    def put(self, name, tensor):
        """Take a one-element tensor. A CUDA tensor is copied to pinned memory without blocking."""
        if tensor.is_cpu:
            self.known[name] = tensor.item()
        elif tensor.is_cuda:
            slot = session.torch.empty((), dtype=tensor.dtype, pin_memory=True)
            slot.copy_(tensor.reshape(()), non_blocking=True)
            event = session.torch.cuda.Event()
            event.record()
            self._pending.append((name, slot, event))

    def read(self):
        """The values by name; None while the device has not passed all of them."""
        if not all(event.query() for _, _, event in self._pending):
            return None
        for name, slot, _ in self._pending:
            self.known[name] = slot.item()
        del self._pending[:]
        return self.known


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
    return plain and (tensor.is_cpu or tensor.is_cuda) and tensor.is_contiguous()
