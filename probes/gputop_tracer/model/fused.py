"""Fused Triton kernels in a model of transformers, by what they allocate and keep (Hsu et al. 2024,
Liger Kernel).

After ``rms_norm.py``, ``rope.py``, ``swiglu.py`` and ``cross_entropy.py`` of ``liger_kernel/ops``.
Their backwards write the gradient over what they were given, as Unsloth's do. A loss fused with the
head is in ``losses.py``.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch import nn

Named = Callable[[str], Any]
MULTIPROCESSORS = 132
"""Of an H100: each sums its own part of a norm's weight gradient, in fp32."""


def apply(model: nn.Module, named: Named, notes: List[str], gated_too: bool = True) -> None:
    """Put the kernels into a meta model; ``gated_too``: one for the products of gated MLPs."""
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    gated = [module for module in model.modules() if gated_too and _is_gated(module)]
    if not norms:
        # the norms of GPT-2's kind have no kernel in Unsloth and fms-acceleration, the loss has
        notes.append(
            "no fused norms fit %s: its cross-entropy alone is a kernel's" % type(model).__name__
        )
        return
    for norm in norms:
        norm.forward = _Norm(norm, named)  # type: ignore[method-assign]
    for mlp in gated:
        mlp.forward = _GatedMlp(mlp)  # type: ignore[method-assign]
    products = "gated products, " if gated_too else ""
    notes.append(
        "fused norms, rotary embedding, %scross-entropy as in Liger Kernel, by hand" % products
    )


@contextmanager
def rotary(model: nn.Module) -> Iterator[None]:
    """Queries and keys of the model's own kind of attention are rotated in place."""
    names = {
        type(module).__module__
        for module in model.modules()
        if "Attention" in type(module).__name__
    }
    modules: Dict[Any, Any] = {sys.modules[name]: None for name in names if name in sys.modules}
    changed = {
        module: module.apply_rotary_pos_emb
        for module in modules
        if hasattr(module, "apply_rotary_pos_emb")
    }
    for module in changed:
        module.apply_rotary_pos_emb = _rotate
    try:
        yield
    finally:
        for module, before in changed.items():
            module.apply_rotary_pos_emb = before


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss, whose backward writes the gradient over the logits."""
    return _CrossEntropy.apply(logits.contiguous(), labels)


def _is_gated(module: nn.Module) -> bool:
    return all(
        isinstance(getattr(module, name, None), nn.Linear)
        for name in ("gate_proj", "up_proj", "down_proj")
    )


class _Norm:
    def __init__(self, norm: Any, named: Named) -> None:
        self.norm, self.named = norm, named

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return _RmsNorm.apply(value, self.norm.weight, self.named)


class _RmsNorm(torch.autograd.Function):
    """``LigerRMSNormFunction``: keeps the input and one fp32 value a row."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor, named: Named) -> torch.Tensor:
        ctx.named = named
        ctx.save_for_backward(value, weight, value.new_empty(value.shape[:-1], dtype=torch.float32))
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        _, weight, _ = ctx.saved_tensors
        with ctx.named("rms_norm_backward"):
            parts = weight.new_empty((MULTIPROCESSORS, weight.numel()), dtype=torch.float32)
            summed = parts.sum(dim=0).to(weight.dtype)
        return grads[0].contiguous(), summed if ctx.needs_input_grad[1] else None, None


class _GatedMlp:
    def __init__(self, mlp: Any) -> None:
        self.mlp = mlp

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        mlp = self.mlp
        return mlp.down_proj(_GatedProduct.apply(mlp.gate_proj(value), mlp.up_proj(value)))


class _GatedProduct(torch.autograd.Function):
    """``LigerSiLUMulFunction`` and ``LigerGELUMulFunction``: the activation is recomputed in the
    backward.
    """

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gate, up = ctx.saved_tensors
        return gate.detach(), up.detach()


def _rotate(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *_rest: Any,
    **_options: Any,
) -> Tuple[torch.Tensor, torch.Tensor]:
    return _Rotary.apply(query, key, cos, sin)


class _Rotary(torch.autograd.Function):
    """``LigerRopeFunction``: in place if tokens come before heads, as after a projection."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> Any:
        ctx.save_for_backward(cos, sin)
        return _in_place(query), _in_place(key)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _in_place(grads[0]), _in_place(grads[1]), None, None


def _in_place(value: torch.Tensor) -> torch.Tensor:
    return value.detach().transpose(1, 2).contiguous().transpose(1, 2)


class _CrossEntropy(torch.autograd.Function):
    """``LigerCrossEntropyFunction``: makes the gradient in the forward, in the logits' memory."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits.detach())
        return torch.zeros(logits.shape[0], dtype=torch.float32).sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return ctx.saved_tensors[0].detach(), None
