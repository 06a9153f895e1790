"""Operations that take another way on CUDA than on the CPU, forced onto the way of CUDA.

Composite operators choose their kernel by the device. While ``as_on_cuda`` is on, the choice is
made here for tensors on the CPU as ``aten/src/ATen/native`` makes it for CUDA: dropout keeps a mask
of one byte a value, attention runs in FlashAttention or the memory-efficient kernel, RMSNorm in one
kernel.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Iterator, Optional

import torch

from .autocast import force_cuda_lists

_FLASH_HEAD_MAX = 256
_FUSED_RMS_NORM_SINCE = (2, 9)
"""The torch in which ``rms_norm`` on CUDA became one kernel (pytorch pull request 153666)."""


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Tensors on the CPU go the way of CUDA. For fake tensors: chosen kernels have no CPU code."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("dropout", _dropout, "AutogradCPU")
        library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
        if torch_version() >= _FUSED_RMS_NORM_SINCE:
            library.impl("rms_norm", _rms_norm, "AutogradCPU")
        force_cuda_lists(library)
    try:
        with _autocast_says_cuda():
            yield
    finally:
        library._destroy()


def torch_version() -> Any:
    return tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])


def _dropout(value: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not train or p == 0:
        return value
    return torch.native_dropout(value, p, train)[0]


def _attention(  # noqa: PLR0917  (torch's signature)
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """The kernel that ``sdp_utils.cpp`` takes on a GPU of compute capability 8.0 and later."""
    scale = options.get("scale")
    same_width = query.shape[-1] == value.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    if (
        query.dim() == 4
        and half
        and attn_mask is None
        and same_width
        and query.shape[-1] <= _FLASH_HEAD_MAX
    ):
        return flash_attention(
            query, key, value, dropout_p=dropout_p, is_causal=is_causal, scale=scale
        )
    if query.dim() == 4 and query.shape[1] == key.shape[1]:
        return _efficient_attention(
            query, key, value, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale
        )
    arguments = (query, key, value, attn_mask, dropout_p, is_causal, None)
    return torch.ops.aten._scaled_dot_product_attention_math(*arguments, **options)[0]


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = True,
    scale: Optional[float] = None,
) -> torch.Tensor:
    """FlashAttention over (batch, heads, tokens, width); the width is padded to a multiple of 8."""
    width = query.shape[-1]
    query, key, value = (_padded(tensor, 8) for tensor in (query, key, value))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    out = kernel(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return out if out.shape[-1] == width else out[..., :width]


def _efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Optional[torch.Tensor],
    *,
    dropout_p: float,
    is_causal: bool,
    scale: Optional[float],
) -> torch.Tensor:
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, float("-inf")).to(query.dtype)
        width = mask.shape[-1]
        mask = _padded(mask, 16)[..., :width]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    saves = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return kernel(query, key, value, mask, saves, dropout_p, is_causal, scale=scale)[0]


def _padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    short = -tensor.shape[-1] % multiple
    return torch.nn.functional.pad(tensor, [0, short]) if short else tensor


def _rms_norm(
    value: torch.Tensor,
    normalized_shape: Any,
    weight: Optional[torch.Tensor] = None,
    eps: Optional[float] = None,
) -> torch.Tensor:
    if weight is None:
        weight = value.new_ones(normalized_shape)
    return FusedRmsNorm.apply(value, weight)


class FusedRmsNorm(torch.autograd.Function):
    """Keeps the input, the weight and one fp32 value a row (``_fused_rms_norm`` in
    ``layer_norm_kernel.cu``).
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = value.shape[: value.dim() - weight.dim()]
        reciprocal = value.new_empty(rows, dtype=torch.float32)
        ctx.save_for_backward(value, weight, reciprocal)
        return torch.empty_like(value, dtype=torch.promote_types(value.dtype, weight.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        value, weight, _ = ctx.saved_tensors
        return torch.empty_like(value), torch.empty_like(weight) if ctx.needs_input_grad[
            1
        ] else None


@contextmanager
def _autocast_says_cuda() -> Iterator[None]:
    """Code that asks whether CUDA is autocast, as peft's, hears of the autocast on here."""
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_gpu_dtype
    asks_by_device = torch_version() >= (2, 4)

    def is_enabled(_device: str = "cuda") -> bool:
        if asks_by_device:
            return enabled("cpu")
        return torch.is_autocast_cpu_enabled()

    torch.is_autocast_enabled = is_enabled
    torch.get_autocast_gpu_dtype = torch.get_autocast_cpu_dtype
    try:
        yield
    finally:
        torch.is_autocast_enabled, torch.get_autocast_gpu_dtype = enabled, dtype
