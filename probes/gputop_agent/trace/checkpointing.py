"""Activation checkpointing as it is commonly done: whole layers, or chosen operations kept (selective)."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch.utils.checkpoint import checkpoint

from .losses import version
from .place import repeated_layers

_NOT_REENTRANT_SINCE = (5, 0)
"""The transformers whose own default is the variant without a nested backward."""


def apply(model: Any, setup: Dict[str, Any], notes: List[str]) -> None:
    """Recompute the repeated layers in the backward as the setup's ``checkpointing`` says."""
    kind = setup.get("checkpointing") or "none"
    if kind == "none":
        return
    options: Dict[str, Any] = {"use_reentrant": _reentrant(setup)}
    if kind == "selective":
        options = {"use_reentrant": False, "context_fn": selective}
    enable = getattr(model, "gradient_checkpointing_enable", None)
    if enable is not None and getattr(model, "supports_gradient_checkpointing", True):
        try:
            enable(gradient_checkpointing_kwargs=options)
        except (ValueError, TypeError):
            _wrap_layers(model, options)
    else:
        _wrap_layers(model, options)
    if options["use_reentrant"] and setup.get("lora"):
        _let_inputs_require_grad(model)
    if kind == "selective":
        notes.append("selective checkpointing keeps every second matrix product and attention, as torchtitan does")


def _let_inputs_require_grad(model: Any) -> None:
    """A nested backward reaches adapters only through an input that requires a gradient."""
    enable = getattr(model, "enable_input_require_grads", None)
    if enable is not None:
        enable()


def _reentrant(setup: Dict[str, Any]) -> bool:
    found = sys.modules.get("transformers")
    asked = setup.get("transformers") or getattr(found, "__version__", "")
    return version(asked) < _NOT_REENTRANT_SINCE if asked else False


def _wrap_layers(model: Any, options: Dict[str, Any]) -> None:
    for path in repeated_layers(model):
        layer = model.get_submodule(path)
        layer.forward = _recomputed(layer.forward, options)


def _recomputed(forward: Callable[..., Any], options: Dict[str, Any]) -> Callable[..., Any]:
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if options["use_reentrant"]:
            return checkpoint(lambda *inputs: forward(*inputs, **kwargs), *args, **options)
        return checkpoint(forward, *args, **options, **kwargs)

    return recomputed


def selective() -> Tuple[Any, Any]:
    """Contexts that keep attention and every second matrix product, as torchtitan's ``activation_checkpoint.py``.

    Needs torch 2.4.
    """
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
    products = {aten.mm.default, aten.addmm.default}
    seen = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> Any:
        if operator in products:
            seen[context.is_recompute] += 1
            keep = seen[context.is_recompute] % 2 == 1
        else:
            keep = operator in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
