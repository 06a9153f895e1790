"""The operators that autocast runs in fp32 on CUDA and not on the CPU, taught to the CPU.

Lists: ``AT_FORALL_FP32`` and ``AT_FORALL_FP32_SET_OPT_DTYPE`` of ``aten/src/ATen/autocast_mode.h``.
The list of what runs in lower precision is the same for both as far as training of transformers
goes.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

_IN_FP32 = (
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "rsqrt",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "group_norm",
    "cosine_similarity",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "logsumexp",
    "soft_margin_loss",
)
_WITH_DTYPE = ("softmax.int", "log_softmax.int", "cumsum", "cumprod", "sum", "sum.dim_IntList")
"""These take the dtype of the result as an argument and are given fp32."""
_LOW = (torch.float16, torch.bfloat16)


def force_cuda_lists(library: Any) -> None:
    """Register CUDA's autocast choices on the CPU in ``library``, a ``Library`` over ``aten``."""
    for name in _IN_FP32:
        library.impl(name, _cast_to_fp32(_operator(name)), "AutocastCPU")
    for name in _WITH_DTYPE:
        library.impl(name, _ask_for_fp32(_operator(name)), "AutocastCPU")


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _below() -> Any:
    """Autocast is off inside, as below any of its kernels."""
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    )


def _cast_to_fp32(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _below():
            return operator(
                *[_up(value) for value in args],
                **{name: _up(value) for name, value in kwargs.items()},
            )

    return kernel


def _ask_for_fp32(operator: Any) -> Callable[..., Any]:
    def kernel(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with _below():
            # softmax and its like take the dtype by position, sums by name.
            if (
                value.dtype in _LOW
                and kwargs.get("dtype") is None
                and not any(_is_dtype(item) for item in args)
            ):
                named = dict(kwargs, dtype=torch.float32)
                return operator(value, *[item for item in args if item is not None], **named)
            return operator(value, *args, **kwargs)

    return kernel


def _up(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW:
        return value.to(torch.float32)
    return value


def _is_dtype(value: Any) -> bool:
    return isinstance(value, torch.dtype)
