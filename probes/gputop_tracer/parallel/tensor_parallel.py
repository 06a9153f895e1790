"""Tensor parallelism on one rank: the model as this rank holds it, and what enters and leaves the
split regions.

Weights are cut as the plan of the model's own configuration says (``base_model_tp_plan`` of
transformers, the column and row cuts of Shoeybi et al. 2019, Megatron-LM, section 3). Collectives
work in place, as NCCL does, but for those of sequence parallelism, which change the size
(Korthikanti et al. 2022, section 4.2.2). Cut by hand, the model stays one of plain tensors, so that
any data parallelism goes around it.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List

import torch
from torch import nn

from . import expert_parallel

Setup = Dict[str, Any]
_COLUMNS = ("colwise", "local_colwise")
_ROWS = ("rowwise", "local_rowwise")
_WHOLE = ("replicated_with_grad_allreduce",)
_VOCABULARY_SPLIT = ("torchtitan",)
"""Recipes that split embedding and head by the vocabulary and compute the loss on the parts."""


def degree(setup: Setup) -> int:
    return int((setup.get("parallel") or {}).get("tp") or 1)


def split(model: Any, setup: Setup, notes: List[str]) -> None:
    """Cut a model on the meta device to what one of the ranks holds.

    Raises:
        ValueError: its configuration has no plan, or one with kinds of cuts that are not traced.
    """
    ways = degree(setup)
    plan = _plan(model)
    sequence = bool(setup["parallel"].get("sequence_parallel"))
    _refuse(model, setup, plan, ways, sequence)
    modules = dict(model.named_modules())
    for path, module in modules.items():
        style = _kind(path, plan)
        if style in _COLUMNS:
            _cut(module, 0, ways)
        elif style in _ROWS and isinstance(module, nn.Linear):
            _cut(module, 1, ways)
            module.register_forward_hook(_Leaving(ways, sequence))
    for parent in {path.rpartition(".")[0] for path in modules if _kind(path, plan) in _COLUMNS}:
        modules[parent].register_forward_pre_hook(_Entering(ways, sequence), with_kwargs=True)
    _ends(model, setup, ways, sequence)
    notes.append("rank 0 of %d tensor-parallel ranks" % ways)


def _plan(model: Any) -> Dict[str, str]:
    """Kinds of cuts by path; experts that are spread over ranks whole are not cut."""
    plan_ = dict(getattr(model, "_tp_plan", None) or {})
    prefix = getattr(model, "base_model_prefix", "")
    base = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    plan = {**plan_, **{"%s.%s" % (prefix, path): style for path, style in base.items()}}
    spread = bool(expert_parallel.experts_of(model))
    return {path: style for path, style in plan.items() if not (spread and ".experts" in path)}


def _refuse(model: Any, setup: Setup, plan: Dict[str, str], ways: int, sequence: bool) -> None:
    known_styles = (*_COLUMNS, *_ROWS, *_WHOLE)
    cuts = [style for path, style in plan.items() if ".layers." in path]
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if not any(style in _COLUMNS for style in cuts) or any(
        style not in known_styles for style in cuts
    ):
        raise ValueError("tensor parallelism of %s is not traced: use the formula tier" % family)
    if setup.get("quantized") or setup.get("lora") or (setup.get("loss") or "plain") != "plain":
        raise ValueError(
            "adapters and fused losses under tensor parallelism are not traced: "
            "use the formula tier"
        )
    heads = getattr(model.config, "num_key_value_heads", None) or model.config.num_attention_heads
    if heads % ways:
        raise ValueError(
            "TP %d over %d key-value heads is not traced: use the formula tier" % (ways, heads)
        )
    if sequence and (setup.get("attention") == "eager" or int(setup.get("seq") or 0) % ways):
        raise ValueError(
            "sequence parallelism is traced with fused attention and a seq that TP divides"
        )


def _kind(path: str, plan: Dict[str, str]) -> str:
    return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", path), "")


def _cut(module: Any, dim: int, ways: int) -> None:
    """A part of the weight, and of the bias where the outputs are split."""
    for name, parameter in list(module._parameters.items()):
        if parameter is not None and dim < parameter.dim():
            shape = list(parameter.shape)
            shape[dim] = -(-shape[dim] // ways)
            part = torch.empty(shape, dtype=parameter.dtype, device="meta")
            module._parameters[name] = nn.Parameter(part, requires_grad=parameter.requires_grad)


def _ends(model: Any, setup: Setup, ways: int, sequence: bool) -> None:
    """Embedding and head: split by vocabulary, or the head alone, gathered (transformers)."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = embedding.weight is head.weight
    by_vocabulary = setup.get("recipe") in _VOCABULARY_SPLIT
    if by_vocabulary:
        _cut(embedding, 0, ways)
        embedding.padding_idx = None
        model.config.vocab_size = model.vocab_size = -(-model.config.vocab_size // ways)
    if by_vocabulary or not tied:
        _cut(head, 0, ways)
        if tied:
            head.weight = embedding.weight
        head.register_forward_pre_hook(_Entering(ways, sequence), with_kwargs=True)
    if not by_vocabulary and not tied:
        head.register_forward_hook(lambda _module, _inputs, out: _Gather.apply(out, ways))
    if sequence:
        embedding.register_forward_hook(lambda _module, _inputs, out: _Scatter.apply(out, ways))


class _Entering:
    """Before a split region: its first input is whole on each rank, its gradient summed."""

    def __init__(self, ways: int, sequence: bool) -> None:
        self.ways, self.sequence = ways, sequence

    def __call__(self, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not self.sequence:
            return None  # the sum of the gradients works in place
        if args:
            return (_Unscatter.apply(args[0], self.ways), *args[1:]), kwargs
        return args, {
            **kwargs,
            "hidden_states": _Unscatter.apply(kwargs["hidden_states"], self.ways),
        }


class _Leaving:
    """After a split region: the sum over ranks, in place, or of this rank's sequence part."""

    def __init__(self, ways: int, sequence: bool) -> None:
        self.ways, self.sequence = ways, sequence

    def __call__(self, _module: nn.Module, _inputs: Any, out: torch.Tensor) -> Any:
        return _Scatter.apply(out, self.ways) if self.sequence else None


def _resized(value: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    shape = list(value.shape)
    shape[dim] = size
    return value.new_empty(shape)


class _Scatter(torch.autograd.Function):
    """Reduce-scatter over the sequence; all-gather of the gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, ways: int) -> torch.Tensor:
        ctx.ways = ways
        return _resized(value, 1, value.shape[1] // ways)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _resized(grads[0], 1, grads[0].shape[1] * ctx.ways), None


class _Unscatter(torch.autograd.Function):
    """All-gather over the sequence; reduce-scatter of the gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, ways: int) -> torch.Tensor:
        ctx.ways = ways
        return _resized(value, 1, value.shape[1] * ways)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _resized(grads[0], 1, grads[0].shape[1] // ctx.ways), None


class _Gather(torch.autograd.Function):
    """All-gather of what the head's parts made; of the gradient each rank takes its part."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, ways: int) -> torch.Tensor:
        ctx.ways = ways
        return _resized(value, -1, value.shape[-1] * ways)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return _resized(grads[0], -1, grads[0].shape[-1] // ctx.ways), None
