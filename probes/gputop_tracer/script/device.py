"""Devices in the script's words: ``cuda`` in a call of torch marks a fake tensor."""

# torch is patched from outside here, in places that its type hints do not know.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import sys
from typing import Any, Callable, Dict

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from gputop_tracer.operators import values

from . import tensor_types
from .fake import CPU, CUDA, Fakes, on_gpu

_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
_LIBRARIES = (
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "torch.distributed.tensor",
    "torch.nn.parallel",
)
"""Code that asks for the device of its mesh, which is ``cpu`` here and stands for the GPU."""


def is_gpu(device: Any) -> bool:
    """Whether a device as given to torch is the GPU; a bare index is."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return type(device) is int


def accept_indices() -> None:
    """A bare index is a GPU for ``torch.device`` and ``Module.to`` too, which want a driver."""
    true, parse = torch.device, torch._C._nn._parse_to

    class OrIndex(type):
        """``torch.device`` itself, but for being called; it cannot be derived from."""

        def __call__(cls, *arguments: Any, **options: Any) -> Any:
            return true(*_named_gpu(arguments), **options)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, true)

        def __eq__(cls, other: Any) -> bool:
            return other is true or other is cls

        def __hash__(cls) -> int:
            return hash(true)

    def parse_to(*arguments: Any, **options: Any) -> Any:
        if type(options.get("device")) is int:
            options["device"] = true("cuda", options["device"])
        return parse(*_named_gpu(arguments), **options)

    torch.device = OrIndex("device", (), {"__module__": "torch"})  # type: ignore[misc,assignment]
    torch._C._nn._parse_to = parse_to  # type: ignore[assignment]


def _named_gpu(arguments: Any) -> Any:
    if arguments and type(arguments[0]) is int:
        return ("cuda:%d" % arguments[0], *arguments[1:])
    return arguments


class Devices(TorchFunctionMode):
    """Sees every call of torch from Python and rewrites the device in it."""

    def __init__(self, fakes: Fakes) -> None:
        super().__init__()
        self.fakes = fakes
        tensor = torch.Tensor
        self._special: Dict[Any, Callable[..., Any]] = {
            tensor.to: self._to,
            tensor.cuda: lambda func, args, kwargs: self._gpu(args[0]),
            tensor.cpu: lambda func, args, kwargs: self._to(tensor.to, (args[0], "cpu"), {}),
            tensor.type: self._type,
            tensor.numpy: self._on_real,
            tensor.tolist: self._on_real,
            tensor.pin_memory: lambda func, args, kwargs: args[0],
            tensor.record_stream: lambda func, args, kwargs: None,
            tensor.get_device: lambda func, args, kwargs: 0 if on_gpu(args[0]) else -1,
            tensor.is_cuda.__get__: lambda func, args, kwargs: on_gpu(args[0]),  # type: ignore[attr-defined]
            tensor.device.__get__: self._device,  # type: ignore[attr-defined]
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload):  # on its way down from a dispatch mode
            return func(*args, **kwargs)
        special = self._special.get(func)
        if special is not None:
            return special(func, args, kwargs)
        device = kwargs.get("device")
        if device is None:
            if func in _device._device_constructors():
                device = _device.CURRENT_DEVICE
            else:
                device = None
            if device is None:
                return func(*args, **kwargs)
        if is_gpu(device) or (torch.device(device).type == "cpu" and _from_library()):
            return self._make(func, args, kwargs)
        if torch.device(device).type == "cpu" and any(on_gpu(leaf) for leaf in values.leaves(args)):
            with self.fakes.placing(False):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A factory on the GPU."""
        self.fakes.named_gpu = True
        kwargs = dict(kwargs, device=CPU)
        if kwargs.pop("pin_memory", None) is not None:
            kwargs["pin_memory"] = False
        if func in _FROM_DATA:
            result = func(
                *args, **dict(kwargs, requires_grad=False) if func is torch.tensor else kwargs
            )
            return self.fakes.to_gpu(result).requires_grad_(kwargs.get("requires_grad", False))
        with self.fakes.placing(True):
            return func(*args, **kwargs)

    def _gpu(self, tensor: torch.Tensor, dtype: Any = None) -> torch.Tensor:
        self.fakes.named_gpu = True
        return self.fakes.to_gpu(tensor, dtype)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, remaining = args[0], list(args[1:])
        device, dtype, layout = _target(remaining, kwargs)
        if layout is not None and on_gpu(layout):
            device = CUDA
        if device is None:
            return func(*args, **kwargs)
        if is_gpu(device) or (torch.device(device).type == "cpu" and _from_library()):
            if type(tensor) is not torch.Tensor or not tensor.is_meta:
                return self._gpu(tensor, dtype)
            return func(*args)
        if torch.device(device).type == "cpu" and on_gpu(tensor):
            host = self.fakes.to_host(tensor)
            return host if dtype is None else func(host, dtype)
        return func(*args, **kwargs)

    def _type(self, func: Any, args: Any, kwargs: Any) -> Any:
        dtype = tensor_types.dtype_of(args[1] if len(args) > 1 else kwargs.get("dtype"))
        if dtype is not None:
            return self._gpu(args[0], dtype)
        return func(*args, **kwargs)

    def _on_real(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        return func(
            values.real(tensor) if hasattr(tensor, "fake_mode") else tensor, *args[1:], **kwargs
        )

    def _device(self, func: Any, args: Any, kwargs: Any) -> Any:
        local = getattr(args[0], "_local_tensor", None)
        if local is not None and on_gpu(local) and not _from_library():
            return CUDA
        return func(*args, **kwargs)


def _target(rest: Any, kwargs: Any) -> Any:
    """(device, dtype, other tensor) of the arguments of ``Tensor.to``."""
    device, dtype, other = kwargs.get("device"), kwargs.get("dtype"), kwargs.get("other")
    for value in rest:
        if isinstance(value, torch.Tensor):
            other = value
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (torch.device, str)) or type(value) is int:
            device = value
    return device, dtype if other is None else other.dtype, other


def _from_library() -> bool:
    """Whether the call of torch comes from its own library that places tensors by mesh."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARIES)
