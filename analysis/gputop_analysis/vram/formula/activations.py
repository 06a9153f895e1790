"""What the forward pass of a transformer layer keeps for its backward pass, in bytes of one micro-batch on this rank.

After Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4 (34 sbh + 5 as²b for
a GPT layer in 16 bits), taken apart so that grouped queries, gated MLPs, experts, frozen weights and fused kernels are
counted as what they keep: an operation keeps its inputs where a gradient needs them, and each tensor counts once.
"""

from __future__ import annotations

from gputop_analysis.catalog.params import Linear, head_width, linears, shared_width
from gputop_analysis.vram.formula.dims import BYTES, Dims, Number
from gputop_analysis.vram.formula.habits import Habits
from gputop_analysis.vram.formula.parts import targeted


def layer_kept(d: Dims, kept: Habits, moe: bool) -> Number:
    """Of one layer without checkpointing."""
    outer = norms_kept(d, kept) + between_kept(d, kept)
    inner = attention_kept(d) + (experts_kept(d) if moe else mlp_kept(d, d.model.ffn))
    inner += shared_kept(d) if moe else 0
    return d.tokens * (outer / d.outer_tp + inner / d.tp + adapters_kept(d, moe) / d.tp)


def boundary(d: Dims, kept: Habits) -> Number:
    """Of one layer under full checkpointing: its input (Chen et al. 2016, section 4)."""
    return d.tokens * kept.residual * d.model.hidden / d.outer_tp


def norms_kept(d: Dims, kept: Habits) -> Number:
    """A token's share of the layer's two norms. One kernel keeps its input; written out it keeps an fp32 copy of it, and the
    normalised values where their weight is trained."""
    if not kept.eager_norm:
        return 2 * kept.residual * d.model.hidden
    copy = 4 if kept.residual < 4 else kept.residual
    normalised = kept.residual if trains_base(d) else 0
    return 2 * (copy + normalised) * d.model.hidden


def between_kept(d: Dims, kept: Habits) -> Number:
    """A token's share of the inputs of the linear layers behind the norms, and of the dropout masks."""
    inputs = 2 * d.compute * d.model.hidden if trains_base(d) else 0
    return inputs + 2 * d.model.hidden * kept.dropout


def attention_kept(d: Dims) -> Number:
    """A token's share of attention: queries, keys and values as the kernel takes them, its output, and for the eager one the
    scores of every head."""
    shape, a = d.model, d.compute
    query, key, value = widths(d)
    if d.setup.attention != "flash" and d.recipe != "megatron" and shape.kv_heads < shape.heads:
        key = value = query  # keys and values are repeated for the heads of a group
    flash = a * (query + key + value + query) + 4 * shape.heads
    if d.setup.attention != "eager":
        return flash
    return a * (query + key + value + query) + scores(d) * shape.heads * d.seq


def widths(d: Dims) -> tuple[int, int, int]:
    """Of all queries, keys and values of a token."""
    shape = d.model
    if shape.mla_kv_rank:
        rotated = shape.mla_nope_dim + shape.mla_rope_dim
        return shape.heads * rotated, shape.heads * rotated, shape.heads * shape.mla_v_dim
    head = head_width(shape)
    kv = (shape.kv_heads or shape.heads) * head
    return shape.heads * head, kv, kv


def scores(d: Dims) -> float:
    """Bytes of one attention score: the fp32 softmax and its copy in the computation's type (Transformers); softmax output,
    dropout mask and its output (Megatron: 5 as²b)."""
    return 5.0 if d.recipe == "megatron" else 4.0 + d.compute


def mlp_kept(d: Dims, width: int) -> Number:
    """A token's share of an MLP: input and output of the activation, and of the product of the two halves where it is gated."""
    a, last = d.compute, d.compute if trains_base(d) else 0
    return width * (3 * a + last) if d.model.gated_mlp else width * (a + last)


def experts_kept(d: Dims) -> Number:
    """A token's share of its ``top_k`` experts: their input, inside and output (kept to be weighted by the router)."""
    shape = d.model
    width = shape.moe_ffn or shape.ffn
    rows = 2 * d.compute * shape.hidden + mlp_kept(d, width)
    return shape.top_k * rows + 4 * 2 * shape.experts


def shared_kept(d: Dims) -> Number:
    """A token's share of the experts that all tokens pass."""
    return mlp_kept(d, shared_width(d.model))


def adapters_kept(d: Dims, moe: bool) -> Number:
    """A token's share of the LoRA adapters of a layer: input in the adapter's type, dropout mask, and the inner product."""
    lora = d.setup.lora
    if lora is None:
        return 0
    each = BYTES[lora.dtype]
    found = [linear for linear in linears(d.model, moe) if targeted(linear, lora)]
    copies = [_input(linear, each, lora.dropout, d) + each * lora.rank for linear in found]
    return sum(size * _passes(d, linear) for size, linear in zip(copies, found, strict=True))


def _input(linear: Linear, each: float, dropout: float, d: Dims) -> Number:
    return linear.inputs * (each + (1 if dropout else 0))


def _passes(d: Dims, linear: Linear) -> Number:
    return d.model.top_k if linear.part == "experts" else 1


def trains_base(d: Dims) -> bool:
    """Whether the language model's own weights get gradients."""
    return d.setup.lora is None and "language" not in d.setup.freeze and d.setup.optimizer != "none"


def backward_extra(d: Dims, kept: Habits, moe: bool) -> Number:
    """What the backward pass of one layer needs besides what was kept: gradients inside its MLP."""
    shape, a = d.model, d.compute
    width = (shape.moe_ffn or shape.ffn) * shape.top_k if moe else shape.ffn
    return d.tokens * (a * width * (3 if shape.gated_mlp else 1) / d.tp + 2 * a * shape.hidden / d.outer_tp)
