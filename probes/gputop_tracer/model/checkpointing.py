"""Activation checkpointing as is common: whole layers, or chosen operations (selective)."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch.utils.checkpoint import checkpoint

from gputop_tracer.tracking.place import repeated_layers

from .losses import version

_NOT_REENTRANT_SINCE = (5, 0)
"""The transformers whose own default is the variant without a nested backward."""
_INSIDE_UNITS_SINCE = (4, 52)
"""The transformers whose layers recompute themselves (``modeling_layers.py``), inside of what FSDP1
wraps around them; before, the model called each layer, wrapper and all, through ``checkpoint``.
"""


def apply(model: Any, setup: Dict[str, Any], notes: List[str]) -> None:
    """Recompute the repeated layers in the backward as the setup's ``checkpointing`` says."""
    checkpointing = setup.get("checkpointing") or "none"
    if checkpointing == "none":
        return
    options: Dict[str, Any] = {"use_reentrant": _reentrant(setup)}
    if checkpointing == "selective":
        options = {"use_reentrant": False, "context_fn": selective}
    of_diffusers = _enabling_of_diffusers(model)
    if of_diffusers is not None and checkpointing == "full":
        of_diffusers()
        return
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
    if checkpointing == "selective":
        notes.append(
            "selective checkpointing keeps every second matrix product and attention, as "
            "torchtitan does"
        )


def _enabling_of_diffusers(model: Any) -> Any:
    """Its models' own way, which has no nested backward; None for another library's."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return getattr(base, "enable_gradient_checkpointing", None)


def around_units(model: Any, setup: Dict[str, Any]) -> None:
    """Recompute units of FSDP1 instead of the layers in them, where the setup's transformers did
    so.

    It makes a difference to a unit without trained weights:
    ``_register_post_backward_reshard_only_hook`` (torch's ``fsdp/_runtime_utils.py``) hooks its
    input, here the detached one of the recomputation, by ``register_multi_grad_hook``, whose
    closure holds the input's node and so the input and its gradient until the end of the backward:
    a second hidden state of each layer, and the first is not freed on the way.
    """
    release = setup.get("transformers") or ""
    if (
        setup.get("checkpointing") != "full"
        or not release
        or version(release) >= _INSIDE_UNITS_SINCE
    ):
        return
    options = {"use_reentrant": _reentrant(setup)}
    for unit in list(model.modules()):
        layer: Any = getattr(unit, "_fsdp_wrapped_module", None)
        if getattr(layer, "gradient_checkpointing", False) and hasattr(
            layer, "_gradient_checkpointing_func"
        ):
            layer.gradient_checkpointing = False
            unit.forward = _recomputed(unit.forward, options)


def _let_inputs_require_grad(model: Any) -> None:
    """A nested backward reaches adapters only through an input that requires a gradient."""
    enable = getattr(model, "enable_input_require_grads", None)
    if enable is not None:
        enable()


def _reentrant(setup: Dict[str, Any]) -> bool:
    library = sys.modules.get("transformers")
    release = setup.get("transformers") or getattr(library, "__version__", "")
    return version(release) < _NOT_REENTRANT_SINCE if release else False


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
    """Contexts that keep attention and every second matrix product, as torchtitan's
    ``activation_checkpoint.py``.

    Needs torch 2.4.
    """
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    saved = {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
    products = {aten.mm.default, aten.addmm.default}
    counts = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> Any:
        if operator in products:
            counts[context.is_recompute] += 1
            keep = counts[context.is_recompute] % 2 == 1
        else:
            keep = operator in saved
        if keep:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
