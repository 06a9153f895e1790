"""What transformers does otherwise for fake tensors, put back to what it does for real ones."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Iterator, List, Tuple

import torch

from gputop_tracer.operators.kernels import flash_attention

from .losses import version

FLASH = "gputop_fa2"
"""FlashAttention for transformers; a name with `flash` would ask for the real package."""

_ALL_HEADS_BEFORE = (4, 48)
_ALL_HEADS = ("mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen2_vl", "starcoder2")
"""Families whose ``FlashAttention2`` repeated keys and values before transformers 4.48."""


@contextmanager
def as_for_real_tensors() -> Iterator[None]:
    """Masks are left out where a real batch without padding would leave them out."""
    changes: List[Tuple[Any, str, Any]] = [
        (
            sys.modules.get("transformers.utils.import_utils"),
            "is_fake_tensor",
            lambda _value: False,
        ),
        (
            sys.modules.get("transformers.masking_utils"),
            "find_packed_sequence_indices",
            lambda _positions: None,
        ),
        (torch, "_check_tensor_all_with", lambda *_arguments: None),
        (torch.nn.functional, "grouped_mm", _grouped_product),
    ]
    before = [
        (module, name, getattr(module, name))
        for module, name, _ in changes
        if hasattr(module, name)
    ]
    for module, name, value in changes:
        if hasattr(module, name):
            setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


_GROUPED_PRODUCT: Any = getattr(torch.nn.functional, "grouped_mm", None)


def _grouped_product(
    rows: torch.Tensor, weight: torch.Tensor, *, offs: Any = None, **options: Any
) -> torch.Tensor:
    """``grouped_mm`` of any type: PyTorch's own for fake tensors takes bf16 alone, that for a GPU
    computes others group by group (``aten/src/ATen/native/cuda/GroupedBlas.cpp``).
    """
    if weight.dtype == torch.bfloat16:
        return _GROUPED_PRODUCT(rows, weight, offs=offs, **options)
    return _GroupedProduct.apply(rows, weight)  # type: ignore[no-any-return]


class _GroupedProduct(torch.autograd.Function):
    """(rows, inputs) with (groups, inputs, outputs) to (rows, outputs)."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(rows, weight)
        return rows.new_empty((rows.shape[0], weight.shape[-1]))

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:  # type: ignore[override]
        rows, weight = ctx.saved_tensors
        needs_rows, needs_weight = ctx.needs_input_grad
        return (
            torch.empty_like(rows) if needs_rows else None,
            torch.empty_like(weight) if needs_weight else None,
        )


def register_flash(family: str = "", transformers: str = "") -> bool:
    """Make FlashAttention known to transformers; False for a version whose attention cannot be
    chosen like this.

    ``family`` and ``transformers`` say whose habits it has.
    """
    repeats = (
        family in _ALL_HEADS and bool(transformers) and version(transformers) < _ALL_HEADS_BEFORE
    )
    try:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(FLASH, _flash_of_all_heads if repeats else _flash)
    except (ImportError, AttributeError):
        return False
    try:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask

        ALL_MASK_ATTENTION_FUNCTIONS.register(FLASH, flash_attention_mask)
    except ImportError:
        pass
    return True


def _flash(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: Any,
    **options: Any,
) -> Tuple[torch.Tensor, None]:
    """As ``integrations/flash_attention.py``: tensors in fp32 are cast, narrower values padded."""
    if query.dtype == torch.float32:
        low = _low_precision(module)
        query, key, value = query.to(low), key.to(low), value.to(low)
    width = value.shape[-1]
    if width != query.shape[-1]:
        value = torch.nn.functional.pad(value, [0, query.shape[-1] - width])
    dropout = options.get("dropout") or 0.0
    out = flash_attention(query, key, value, dropout_p=dropout, scale=options.get("scaling"))
    return out[..., :width].transpose(1, 2), None


def _flash_of_all_heads(
    module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any
) -> Any:
    groups = query.shape[1] // key.shape[1]
    return _flash(module, query, _repeated(key, groups), _repeated(value, groups), mask, **options)


def _repeated(value: torch.Tensor, groups: int) -> torch.Tensor:
    """``repeat_kv``: a copy."""
    batch, heads, tokens, width = value.shape
    repeated = value[:, :, None].expand(batch, heads, groups, tokens, width)
    return repeated.reshape(batch, heads * groups, tokens, width)


def _low_precision(module: Any) -> torch.dtype:
    if torch.is_autocast_enabled():
        return torch.get_autocast_gpu_dtype()
    weights = (
        layer.weight.dtype for layer in module.modules() if isinstance(layer, torch.nn.Linear)
    )
    return next((dtype for dtype in weights if dtype != torch.float32), torch.bfloat16)
