"""Fake tensors of two places, the host and the GPU, for a script that was written for a GPU.

torch's own fake ``cuda`` tensors abort in the autograd engine without a driver, so a tensor on the
GPU is a fake ``cpu`` tensor with a mark, and only what carries the mark is memory of the GPU.
Tensors on the host stay real, so that datasets, samplers and tokenizers work as ever; parameters
are fake from birth, so that a model of any size can be made.
"""

# torch is patched from outside here, in places that its type hints do not know.
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterator, Optional

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from gputop_tracer.operators import values

HOST_REAL_BYTES = 256 << 20
"""A larger host tensor is fake: a made-up data set must not fill this machine's memory."""
_TRUTHFUL = ("torch.distributed", "torch._", "torch.fx", "torch.utils._")
"""Modules that see a fake tensor's true device, ``cpu``; others ``cuda:0`` for the GPU's."""
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
_aten = torch.ops.aten
_FAKE = getattr(getattr(torch._C, "_TorchDispatchModeKey", None), "FAKE", None)


def on_gpu(tensor: Any) -> bool:
    """Whether a tensor is fake and on the GPU."""
    return isinstance(tensor, FakeTensor) and tensor.__dict__.get("_gpu", False)


class Fakes(TorchDispatchMode):
    """Makes fake tensors and runs operations on them. Enter it below the tracker of storages."""

    def __init__(self) -> None:
        super().__init__()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.named_gpu = False
        """Whether the script ever asked for a GPU."""
        self.moved: Callable[[torch.Tensor], Any] = lambda tensor: None
        """Called with a tensor of the host whose memory is the GPU's from now on."""
        self._place: Optional[bool] = None

    @contextlib.contextmanager
    def placing(self, gpu: bool) -> Iterator[None]:
        """Operations' results in here are on the GPU, or the host, whatever their inputs are."""
        before, self._place = self._place, gpu
        try:
            yield
        finally:
            self._place = before

    def to_gpu(self, tensor: torch.Tensor, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
        """As ``tensor.to("cuda", dtype)``; a parameter moves itself, as by ``Module.to``."""
        if not isinstance(tensor, FakeTensor):
            return self.from_real(tensor, dtype, gpu=True)
        if on_gpu(tensor) or not isinstance(tensor, torch.nn.Parameter):
            with self.placing(True):
                return torch.Tensor.to(tensor, dtype or tensor.dtype, copy=not on_gpu(tensor))
        if dtype not in (None, tensor.dtype):
            with self.placing(True):
                return torch.Tensor.to(tensor, dtype)
        tensor.__dict__["_gpu"] = True
        self.moved(tensor)
        return tensor

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """As ``tensor.cpu()``: real where no gradient goes through it."""
        if not tensor.requires_grad and tensor.numel() * tensor.element_size() <= HOST_REAL_BYTES:
            return values.real(tensor)
        with self.placing(False):
            return torch.Tensor.clone(tensor)

    def from_real(
        self, tensor: torch.Tensor, dtype: Optional[torch.dtype] = None, gpu: bool = False
    ) -> torch.Tensor:
        """A fake tensor of a real one's shape, with its values kept where they are few."""
        if tensor.layout is not torch.strided:
            raise NotImplementedError("sparse tensors are not traced")
        with self.placing(gpu), self.mode:
            fake = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=dtype or tensor.dtype, device=CPU
            )
        values.remember(
            fake, tensor if dtype in (None, tensor.dtype) else tensor.detach().to(dtype)
        )
        return fake.requires_grad_() if tensor.requires_grad else fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(
            not issubclass(tensor_type, (FakeTensor, torch.nn.Parameter))
            and tensor_type is not torch.Tensor
            for tensor_type in types
        ):
            return NotImplemented  # DTensor and the like come back with the tensors that they wrap
        tensors = values.leaves((args, kwargs))
        fakes = [tensor for tensor in tensors if isinstance(tensor, FakeTensor)]
        if not fakes:
            return self._without_fakes(func, args, kwargs, bool(tensors))
        if func is _aten._local_scalar_dense.default:
            return values.item(args[0])
        if func is _aten.equal.default:
            return False
        out = self._run(func, args, kwargs)
        values.carry(func, args, kwargs, out)
        values.judge(func, args, out)
        return self._mark(out, any(on_gpu(fake) for fake in fakes))

    def _without_fakes(self, func: Any, args: Any, kwargs: Any, has_tensors: bool) -> Any:
        """A factory, or work on the host."""
        if (
            self._place
            or _fake_mode_is_on()
            or (not has_tensors and _bytes_asked(args) > HOST_REAL_BYTES)
        ):
            with self.mode:
                return self._mark(func(*args, **kwargs), False)
        return func(*args, **kwargs)

    def _mark(self, out: Any, gpu: bool) -> Any:
        gpu = gpu if self._place is None else self._place
        for tensor in values.leaves(out):
            if isinstance(tensor, FakeTensor):
                tensor.__dict__.setdefault("_gpu", gpu)
        return out

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            with self.mode:
                return func(*args, **kwargs)
        except DynamicOutputShapeException:
            out = self._shaped_by_values(func, args, kwargs)
            if out is None:
                raise
            return out

    def _shaped_by_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An output with a shape by values: known ones, or of a mask that lets all through."""
        if func is _aten.index.Tensor:
            return self._run(func, (args[0], values.without_masks(args[1], self._integers)), kwargs)
        if func is _aten.nonzero.default:
            return self._integers((values.true_rows(args[0]), args[0].dim()))
        if func is _aten.masked_select.default:
            return self._run(
                _aten.index.Tensor, (args[0], values.without_masks([args[1]], self._integers)), {}
            )
        if func is _aten._pack_padded_sequence.default:
            return self._packed(*args)
        if func is _aten._pad_packed_sequence.default:
            return self._padded(*args)
        true = values.known_arguments(args, kwargs)
        if true is None:
            return None
        return torch.utils._pytree.tree_map(
            lambda leaf: self.from_real(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            func(*true[0], **true[1]),
        )

    def _packed(self, batch: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
        """What recurrent layers take: all sequences' tokens, and on the host how many a place."""
        counts = values.packed_lengths(lengths, batch.shape[1 if batch_first else 0])
        tokens = int(counts.sum())
        with self.mode:
            return batch.new_empty((tokens, *batch.shape[2:])), counts

    def _padded(
        self, data: torch.Tensor, counts: Any, batch_first: bool, _value: Any, least: int
    ) -> Any:
        largest, longest = int(counts[0]), max(int(counts.numel()), least)
        shape = (largest, longest) if batch_first else (longest, largest)
        with self.mode:
            return data.new_empty((*shape, *data.shape[1:])), torch.full(
                (largest,), counts.numel(), dtype=torch.long
            )

    def _integers(self, shape: Any) -> torch.Tensor:
        with self.mode:
            return torch.empty(shape, dtype=torch.long, device=CPU)


def _fake_mode_is_on() -> bool:
    return _FAKE is not None and torch._C._get_dispatch_mode(_FAKE) is not None


def _bytes_asked(args: Any) -> int:
    """About how much a factory is asked for; element sizes of up to 4 bytes."""
    sizes = next((arg for arg in args if isinstance(arg, (list, tuple))), ())
    count = 4
    for size in sizes:
        count *= size if isinstance(size, int) else 1
    return count


def show_devices() -> None:
    """From now on fake tensors on the GPU say ``cuda:0`` to all but torch's own inside."""
    true = FakeTensor.device.fget

    def device(self: Any) -> torch.device:
        if self.__dict__.get("_gpu", False) and not self.fake_mode.in_kernel_invocation:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith(_TRUTHFUL):
                return CUDA
        return true(self)  # type: ignore[misc]

    FakeTensor.device = property(device, FakeTensor.device.fset)  # type: ignore[assignment]
