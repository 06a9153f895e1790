"""What of torch is replaced for fake tensors: construction, copies, autocast, compilation."""

# torch is patched from outside here, in places that its type hints do not know.
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from gputop_tracer.operators import values

from . import tensor_types
from .device import is_gpu
from .fake import Fakes, on_gpu

_PLAIN_OVERRIDE = getattr(torch._C, "_disabled_torch_function_impl", None)


def replace(fakes: Fakes, notes: Any) -> None:
    """All of it, for this process; ``notes`` gets sentences for what the user should know."""
    tensor_types.replace()
    _see_through_functions()
    _fake_parameters(fakes)
    _plain_module_moves()
    _printing_and_copying()
    _autocast_on_gpu()
    _eager(notes)
    _foreach_defaults()
    _scaler_always_steps()
    _one_replica(notes)
    torch.distributions.Distribution.set_default_validate_args(False)  # of values that are made up


def _see_through_functions() -> None:
    """Functions that torch writes in Python hide their inside from a function mode; let only real
    overrides stop there.

    The device is then seen in the calls inside, in a backward and in a recomputation too.
    """

    def overridden(arguments: Any) -> bool:
        for argument in arguments:
            argument_type = type(argument)
            if (
                argument_type is torch.Tensor
                or not isinstance(argument, torch.Tensor)
                or isinstance(argument, FakeTensor)
            ):
                continue
            if argument_type.__torch_function__ is not _PLAIN_OVERRIDE:
                return True
        return False

    def variadic(*arguments: Any) -> bool:
        return overridden(arguments)

    for module in (
        nn.functional,
        torch.functional,
        torch._tensor,
        torch.autograd,
        torch.overrides,
        nn.init,
    ):
        for name, new in (
            ("has_torch_function", overridden),
            ("has_torch_function_unary", variadic),
        ):
            if hasattr(module, name):
                setattr(module, name, new)
        if hasattr(module, "has_torch_function_variadic"):
            module.has_torch_function_variadic = variadic


def _fake_parameters(fakes: Fakes) -> None:
    """A parameter is fake from birth: what it was made from is freed before it is written."""
    original = nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor and data.device.type == "cpu" and cls is nn.Parameter:
            with torch.no_grad():
                data = fakes.from_real(data)
            data.__dict__.pop("_known", None)
        return original(cls, data, requires_grad)

    nn.Parameter.__new__ = new  # type: ignore[method-assign,assignment]


def _plain_module_moves() -> None:
    """``Module.to`` and its like change a fake parameter in place, as they do with a real one."""
    original = nn.Module._apply

    def apply(module: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        if not any(isinstance(parameter, FakeTensor) for parameter in module._parameters.values()):
            return original(module, fn, recurse)
        if recurse:
            for child in module.children():
                child._apply(fn)
        with torch.no_grad():
            for parameter in module._parameters.values():
                if parameter is not None:
                    _move(parameter, fn)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = fn(buffer)
        return module

    nn.Module._apply = apply  # type: ignore[method-assign,assignment]


def _move(parameter: Any, fn: Any) -> None:
    moved, gradient = fn(parameter), parameter.grad
    if moved is not parameter:
        parameter.data = moved
        parameter.__dict__["_gpu"] = on_gpu(moved)
    if gradient is not None:
        parameter.grad = fn(gradient)


def _printing_and_copying() -> None:
    plain_format = torch.Tensor.__format__

    def formatted(tensor: torch.Tensor, spec: str) -> str:
        if isinstance(tensor, FakeTensor):
            if tensor.dim() == 0:
                return format(values.item(tensor), spec)
            return str(tensor)
        return plain_format(tensor, spec)

    def copied(tensor: Any, memo: Any) -> Any:
        if id(tensor) in memo:
            return memo[id(tensor)]
        with torch.no_grad():
            result = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            result = nn.Parameter(result, tensor.requires_grad)
        else:
            result.requires_grad_(tensor.requires_grad and tensor.is_leaf)
        for name, value in tensor.__dict__.items():
            if not name.startswith("_") and name not in (
                "fake_mode",
                "constant",
                "real_tensor",
                "pytype",
                "dispatch_keys",
            ):
                result.__dict__.setdefault(name, copy.deepcopy(value, memo))
        memo[id(tensor)] = result
        return result

    torch.Tensor.__format__ = formatted  # type: ignore[method-assign]
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore[method-assign,assignment]
    FakeTensor.__deepcopy__ = copied  # type: ignore[attr-defined]
    FakeTensor.__repr__ = lambda tensor, **_: "tensor(..., size=%s)" % (tuple(tensor.shape),)  # type: ignore[method-assign,assignment]


def _autocast_on_gpu() -> None:
    """Autocast for ``cuda`` works on fake tensors' device by CUDA's lists (``as_on_cuda``)."""
    autocast = torch.amp.autocast_mode.autocast
    original = autocast.__init__

    def init(self: Any, device_type: str, dtype: Any = None, *rest: Any, **more: Any) -> None:
        if is_gpu(device_type):
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *rest, **more)

    autocast.__init__ = init  # type: ignore[method-assign]
    for name in (
        "is_autocast_enabled",
        "get_autocast_dtype",
        "set_autocast_enabled",
        "set_autocast_dtype",
    ):
        if hasattr(torch, name):
            setattr(torch, name, _for_cpu(getattr(torch, name)))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")


def _for_cpu(original: Any) -> Any:
    def asked(*arguments: Any) -> Any:
        if not arguments or isinstance(arguments[0], bool):
            return original("cpu", *arguments)
        return original(*(("cpu",) + arguments[1:] if is_gpu(arguments[0]) else arguments))

    return asked


def _eager(notes: Any) -> None:
    """``torch.compile`` and scripting give back what they were given."""

    def compile_(model: Any = None, *_arguments: Any, **_options: Any) -> Any:
        notes("torch.compile was left out: the estimate is of the eager model.")
        return model if model is not None else lambda function: function

    def in_place(_module: Any, *_arguments: Any, **_options: Any) -> None:
        compile_(_module)

    torch.compile = compile_  # type: ignore[assignment]
    nn.Module.compile = in_place  # type: ignore[method-assign,assignment]
    torch.jit.script = lambda obj, *_arguments, **_options: obj  # type: ignore[assignment]
    generator = torch.Generator

    class Generator(generator):  # type: ignore[misc,valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator.__new__(cls, "cpu" if is_gpu(device) else device)

    torch.Generator = Generator  # type: ignore[misc,assignment]


def _foreach_defaults() -> None:
    """Optimizers and clipping take their CUDA default, foreach, for fake parameters too."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for module in (optimizer, _foreach_utils):
        kinds = getattr(module, "_foreach_supported_types", None)
        if isinstance(kinds, list) and FakeTensor not in kinds:
            kinds.append(FakeTensor)


def _scaler_always_steps() -> None:
    """No overflow is seen in made-up gradients."""

    def step(_scaler: Any, optimizer: Any, _state: Any, *arguments: Any, **options: Any) -> Any:
        return optimizer.step(*arguments, **options)

    for scaler in {
        getattr(getattr(torch, "amp", None), "GradScaler", None),
        torch.cuda.amp.GradScaler,
    } - {None}:
        scaler._maybe_opt_step = step  # type: ignore[union-attr]


def _one_replica(notes: Any) -> None:
    """``nn.DataParallel`` on its first GPU alone, which is the one that holds the most."""

    def forward(parallel: Any, *arguments: Any, **options: Any) -> Any:
        notes("nn.DataParallel was traced on one GPU with the whole batch.")
        return parallel.module(*arguments, **options)

    nn.DataParallel.forward = forward  # type: ignore[method-assign]
