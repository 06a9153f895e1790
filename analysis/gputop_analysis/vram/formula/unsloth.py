"""What Unsloth's own kernels keep of a dense layer with adapters, in bytes of one token.

Read off ``unsloth/kernels``: ``LoRA_QKV`` and ``LoRA_MLP`` of ``fast_lora.py`` keep their input
once for all adapters, the MLP its two halves and neither their product nor inputs of adapters; the
backward pass writes gradients over the halves and over the input. Norms (``rms_layernorm.py``) keep
their input and give its gradient in place, the rotary embedding works in place.
"""

from __future__ import annotations

from gputop_analysis.vram.formula.dims import Dims, Number


def replaces(d: Dims, moe: bool) -> bool:
    """Whether a layer runs by these kernels: one with adapters and a gated MLP."""
    gated = d.model.gated_mlp and not d.model.mla_kv_rank
    return d.recipe == "unsloth" and d.setup.lora is not None and gated and not moe


def mlp_kept(d: Dims) -> Number:
    """The MLP's input and both halves."""
    return d.compute * (d.model.hidden + 2 * d.model.ffn)


def mlp_peak(d: Dims) -> Number:
    """Most of it in the backward pass: the gradient of the halves' product besides, the layer's
    output, which its checkpoint made again, and the gradient of that.
    """
    return mlp_kept(d) + d.compute * (d.model.ffn + 2 * d.model.hidden)


def attention_input(d: Dims) -> Number:
    """What queries, keys and values are made of; the output's input the attention keeps anyway."""
    return d.compute * d.model.hidden
