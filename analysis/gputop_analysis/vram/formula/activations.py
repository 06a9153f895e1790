"""What the forward pass of a transformer layer keeps for its backward pass, in bytes of one token.

After Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
section 4 (34 sbh and 5 as²b for a GPT layer in 16 bits), taken apart so that grouped queries, gated
MLPs, experts, frozen weights and fused kernels are counted by what they keep: an operation keeps
those inputs that a gradient needs, a tensor counts once. What PyTorch's operations keep was read
off traces of Transformers' own modules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gputop_analysis.catalog.families import traits
from gputop_analysis.catalog.params import Linear, head_width, linears, shared_width
from gputop_analysis.vram.adapters import names_of, targeted
from gputop_analysis.vram.formula import dora, unsloth
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.habits import Habits
from gputop_analysis.vram.formula.releases import single_experts
from gputop_analysis.vram.setup import TRANSFORMERS_CODE, Setup

EAGER_GELU = ("gpt2", "gpt_neo", "gptj", "phi")
"""Families with ``gelu_new`` written out in operations that keep three more tensors."""
SOFTCAP = ("gemma2",)
"""Families that squeeze attention scores by ``tanh``, which SDPA cannot, and logits as well."""
FP32_SCALES = ("gemma", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "olmo2", "olmo3")
"""Families whose norms multiply by their weight in fp32, before the cast."""
DROPOUT = ("gpt2", "opt", "bert", "roberta", "xlm-roberta", "distilbert")
"""Families that train with dropout by default."""
SCORES_DROPOUT = ("gpt2", "bert", "roberta", "xlm-roberta", "distilbert")
"""Those that also drop attention scores by default, with softmax in the computation's type."""
SOFTMAX_AS_IT_IS = ("falcon", "gpt_oss")
"""Families that leave the softmax in the computation's type, without dropout."""
WRITTEN_LAYER_NORM = ("cohere",)
"""Families whose LayerNorm is written out in PyTorch: deviations, their squares' and scaled, in
fp32 (``CohereLayerNorm``).
"""
ONE_ATTENTION = ("bloom", "mpt")
"""Families that know no attention of a kernel in Transformers, whatever is asked for."""
WITHOUT_SDPA = ("gpt_neo", "gpt_oss")
"""Those that have FlashAttention, but no SDPA."""
RELU = ("opt",)
"""Families whose activation is that."""
ALL_EXPERTS = ("llama4_text",)
"""Families that send each token through all experts (``Llama4TextMoe`` of Transformers)."""
ALIBI = ("bloom", "mpt")
"""Families that add a slope to attention scores in place of any position of queries and keys."""
KEEPS_NO_INPUTS = (43, 2)
"""bitsandbytes 0.43.2, from which on a frozen 4-bit layer keeps nothing for its backward pass but
its weight (``MatMul4Bit`` of ``autograd/_functions.py``; in 0.43.1 its input as well).
"""
LOG_SUM_EXP = 4
"""Bytes that a fused attention keeps of a token and head (Dao 2023, algorithm 1)."""


def bitsandbytes_keeps_inputs(setup: Setup) -> bool:
    """Whether the release of bitsandbytes is one whose 4-bit layers keep their inputs; 0.43 alone
    is the last of its kind, and none named is a recent one.
    """
    named = re.match(r"0\.(\d+)(?:\.(\d+))?", setup.bitsandbytes)
    if named is None or not setup.quantized:
        return False
    return (int(named[1]), int(named[2] or 99)) < KEEPS_NO_INPUTS


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Of one layer, one token of this rank."""

    outside: Number
    """All but the MLP."""
    mlp: Number
    entry: Number
    """The layer's input, where it is among those kept: with checkpointing it is there."""
    mlp_peak: Number
    """Most that the MLP holds in its backward pass, instead of ``mlp``."""
    norm_peak: Number
    """What the backward pass of a norm holds besides."""
    scores_peak: Number
    """What that of the attention's scores holds besides."""

    @property
    def whole(self) -> Number:
        return self.outside + self.mlp


def layer(d: Dims, habits: Habits, moe: bool) -> ActivationBytes:
    """Of a layer without checkpointing."""
    if unsloth.replaces(d, moe):
        return _by_unsloth(d, habits)
    adapters, adapters_mlp = adapters_kept(d, habits, moe)
    width = _mlp_width(d, moe)
    between = stream_kept(d, habits) / d.outer_tp
    attention = (attention_kept(d, habits) + adapters) / d.tp
    a, hidden = d.compute, d.model.hidden
    if moe:
        inside = experts_kept(d, habits)
    else:
        inside = mlp_kept(d, habits, d.model.ffn)
    gradients = a * width * ((3 if d.model.gated_mlp else 2) - trains_base(d)) / d.tp
    if moe and one_by_one(d):
        gradients = gradients / d.model.experts
    return ActivationBytes(
        outside=between + attention,
        mlp=(inside + adapters_mlp) / d.tp,
        entry=habits.residual
        * hidden
        / d.outer_tp
        * (not _copies_input(d, habits) and habits.boundary == habits.residual),
        mlp_peak=(inside + adapters_mlp) / d.tp
        + gradients
        + (2 * habits.residual + 2) * hidden / d.outer_tp,
        norm_peak=(5 * 4 if habits.eager_norm and _rms(d) else 3 * habits.residual)
        * hidden
        / d.outer_tp,
        scores_peak=scores_peak(d, habits) / d.tp,
    )


def _by_unsloth(d: Dims, habits: Habits) -> ActivationBytes:
    between = stream_kept(d, habits) / d.outer_tp
    attention = (attention_kept(d, habits) + unsloth.attention_input(d)) / d.tp
    return ActivationBytes(
        outside=between + attention,
        mlp=unsloth.mlp_kept(d) / d.tp,
        entry=habits.residual * d.model.hidden / d.outer_tp,
        mlp_peak=unsloth.mlp_peak(d) / d.tp,
        norm_peak=habits.residual * d.model.hidden / d.outer_tp,
        scores_peak=scores_peak(d, habits) / d.tp,
    )


def boundary(d: Dims, habits: Habits) -> Number:
    """What full checkpointing keeps of a layer: its input (Chen et al. 2016, section 4)."""
    return habits.boundary * d.model.hidden / d.outer_tp


def _rms(d: Dims) -> bool:
    return traits(d.model.family).norm == "rms"


def _copies_input(d: Dims, habits: Habits) -> bool:
    """Whether a norm keeps an fp32 copy of its input in place of the input itself."""
    return habits.eager_norm and _rms(d) and habits.residual < 4


def stream_kept(d: Dims, habits: Habits) -> Number:
    """What lies between attention and MLP: norms' inputs and outputs, dropout masks of a byte."""
    family, hidden = traits(d.model.family), d.model.hidden
    norm = norm_kept(d, habits, hidden)
    dropout = d.setup.dropout > 0 or _drops(d, DROPOUT)
    input_bytes = habits.linear_input if habits.linear_input else d.compute
    inputs = keeps_inputs(d) * input_bytes * hidden * (1 if not habits.casts_inputs else 2.5)
    count = family.norms_per_layer
    return count * norm + 2 * inputs + 2 * hidden * dropout


def norm_kept(d: Dims, habits: Habits, width: int) -> Number:
    """Of one norm of that width, without its output. One kernel keeps its input; written out in
    PyTorch it keeps an fp32 copy, and the normalised values where their weight is trained.
    """
    if habits.eager_norm and d.model.family in WRITTEN_LAYER_NORM:
        return width * (8 + 4 * trains_base(d))
    if not (habits.eager_norm and _rms(d)):
        return habits.residual * width
    return width * (4 + trains_base(d) * (4 if d.model.family in FP32_SCALES else habits.residual))


def attention_kept(d: Dims, habits: Habits) -> Number:
    """Queries, keys, values and output of the kernel, and for the eager one all heads' scores."""
    shape, a = d.model, d.compute
    query, key, value = widths(d)
    eager = keeps_scores(d)
    repeated = eager and d.recipe != "megatron" and shape.kv_heads < shape.heads
    taken = query + 2 * query if repeated else query + key + value
    inside = a * (taken + _output(d) + (query + key) * _keeps_fused(d))
    if keeps_inputs(d):
        inside += habits.linear_input * _output(d)  # an 8-bit copy beside what the kernel keeps
    if traits(shape.family).qk_norm:
        inside += norm_kept(d, habits, query) + norm_kept(d, habits, key)
    return inside + shape.heads * (scores(d, habits) * d.seq if eager else LOG_SUM_EXP)


def keeps_scores(d: Dims) -> bool:
    """Whether attention writes its scores to memory: asked to, or since no kernel does it."""
    if d.setup.attention == "eager":
        return True
    refusing = ONE_ATTENTION
    if d.setup.attention == "sdpa":
        refusing += WITHOUT_SDPA
    if d.recipe in TRANSFORMERS_CODE and d.model.family in refusing:
        return True
    return by_math(d) or (d.setup.attention == "sdpa" and capped(d))


def scores_peak(d: Dims, habits: Habits) -> Number:
    """Of a token: a softmax's backward pass has its result, and the gradients before and after it,
    in the softmax's type at once, the MLP's part being gone.
    """
    if not keeps_scores(d) or d.recipe == "megatron":
        return 0
    extra = 3 * softmax_bytes(d, habits) - scores(d, habits)
    return max(extra, 0.0) * d.model.heads * d.seq


def _keeps_fused(d: Dims) -> bool:
    """Whether queries and keys stay as one fused projection made them, since the values are a view
    of it, beside those that the rotary embedding made.
    """
    family = traits(d.model.family)
    rotates = not family.learned_positions and d.model.family not in ALIBI
    return rotates and len(family.qkv) == 1 and d.recipe != "megatron"


def widths(d: Dims) -> tuple[int, int, int]:
    """Of all queries, keys and values of a token."""
    shape = d.model
    if shape.mla_kv_rank:
        rotated = shape.mla_nope_dim + shape.mla_rope_dim
        return shape.heads * rotated, shape.heads * rotated, shape.heads * shape.mla_v_dim
    head = head_width(shape)
    kv = (shape.kv_heads or shape.heads) * head
    return shape.heads * head, kv, kv


def _output(d: Dims) -> int:
    return d.model.heads * (d.model.mla_v_dim or head_width(d.model))


def scores(d: Dims, habits: Habits) -> float:
    """Of one attention score: the fp32 softmax and its copy in the computation's type
    (Transformers; GPT-2's and BERT's is not upcast); the softmax, a dropout mask and the masked
    softmax (Megatron-LM's 5 as²b).
    """
    softmax = softmax_bytes(d, habits)
    if by_math(d):
        return softmax
    copied = d.compute * (softmax > d.compute)
    dropped = d.setup.dropout > 0 or _drops(d, SCORES_DROPOUT)
    return softmax + copied + (d.compute + 1) * dropped + d.compute * capped(d)


def softmax_bytes(d: Dims, habits: Habits) -> float:
    """Of one value of an attention's softmax, which autocast runs in fp32, as SDPA's own products
    do (``_scaled_dot_product_attention_math``).
    """
    if by_math(d):
        return 4.0
    if d.recipe == "megatron":
        return d.compute
    by_hand = d.recipe == "plain" and not d.setup.autocast
    of_family = d.model.family in SCORES_DROPOUT and written_out(d)
    in_type = by_hand or of_family or d.model.family in SOFTMAX_AS_IT_IS
    return d.compute if in_type and not habits.casts_inputs else 4.0


def _drops(d: Dims, by_default: tuple[str, ...]) -> bool:
    """Whether a model of families that train with dropout does, too: its configuration may not."""
    return d.model.dropout is not False and d.model.family in by_default and written_out(d)


def mlp_kept(d: Dims, habits: Habits, width: int) -> Number:
    """Input and output of the activation, of which ReLU keeps the output alone; if gated, the other
    half and the product too, but the output where one kernel does both (Megatron-Core's
    ``fusions/fused_bias_swiglu.py``, which computes it again).
    """
    a = product_bytes(d, habits)
    if d.model.family in RELU:
        return width * a
    last = (habits.linear_input or d.compute) if keeps_inputs(d) else 0
    last += 3 * a * (d.model.family in EAGER_GELU and not d.model.gated_mlp and written_out(d))
    inside = 1
    if d.model.gated_mlp:  # sharded as by FSDP it is PyTorch's own MLP, whoever trains
        inside = 2 if d.recipe == "megatron" and d.setup.parallel.stage < 3 else 3
    return width * (inside * a + last)


def product_bytes(d: Dims, habits: Habits) -> float:
    """Of one value that a linear layer gives: in the type of the computation, but a quantised one
    gives the type that it is given (``forward`` of bitsandbytes' ``Linear4bit``).
    """
    return habits.residual if d.setup.quantized and habits.casts_inputs else d.compute


def _mlp_width(d: Dims, moe: bool) -> int:
    shape = d.model
    if moe:
        return (shape.moe_ffn or shape.ffn) * shape.top_k + shared_width(shape)
    return shape.ffn


def experts_kept(d: Dims, habits: Habits) -> Number:
    """The experts that a token passes: their input, where they are trained, inside, and output
    (kept to be weighted; of Llama 4, whose input is weighted, that); the router's fp32 scores.
    """
    shape = d.model
    inputs = keeps_inputs(d) or adapts_experts(d)
    wide = d.compute * shape.hidden * ((d.recipe != "megatron") + inputs)
    passed = shape.experts if shape.family in ALL_EXPERTS else shape.top_k
    routed = passed * (wide + mlp_kept(d, habits, shape.moe_ffn or shape.ffn))
    return routed + mlp_kept(d, habits, shared_width(shape)) + 4 * 2 * shape.experts


def adapts_experts(d: Dims) -> bool:
    """Whether LoRA sits on experts."""
    lora, layer_linears = d.setup.lora, linears(d.model, True)
    if lora is None:
        return False
    peers = names_of(layer_linears)
    return any(
        targeted(linear, lora, peers) for linear in layer_linears if linear.part == "experts"
    )


def one_by_one(d: Dims) -> bool:
    """Whether experts are modules of their own, whose backward passes come one after the other:
    Transformers' before 5.0.
    """
    return d.recipe in TRANSFORMERS_CODE and single_experts(d.setup)


def adapters_kept(d: Dims, habits: Habits, moe: bool) -> tuple[Number, Number]:
    """What LoRA keeps in attention and in the MLP: each adapter's input and inner product.

    An adapter in another type than the computation has a copy of its input to itself, as it has
    with dropout. Where experts are one tensor, peft adds the adapters' product to all of it first
    (``ParamWrapper`` of ``tuners/lora/layer.py``), and that sum is kept, whatever the tokens.
    """
    lora = d.setup.lora
    if lora is None:
        return 0, 0
    if d.setup.autocast or habits.residual > d.compute or habits.casts_shards:
        bytes_per_value = d.compute
    else:
        bytes_per_value = habits.adapters
    own_cast = d.setup.autocast or habits.casts_inputs
    keeps_copy = bytes_per_value != d.compute or own_cast or lora.dropout > 0
    sides: list[Number] = [0, 0]
    shared: set[tuple[str, int]] = set()
    layer_linears = linears(d.model, moe)
    peers = names_of(layer_linears)
    for linear in layer_linears:
        if not targeted(linear, lora, peers):
            continue
        if linear.part == "experts" and not single_experts(d.setup):
            sides[1] += d.compute * linear.copies * linear.inputs * linear.outputs / d.tokens
            continue
        fresh = keeps_copy or (linear.part, linear.inputs) not in shared
        shared.add((linear.part, linear.inputs))
        size = (
            linear.inputs * (bytes_per_value * fresh + (lora.dropout > 0))
            + bytes_per_value * lora.rank
        )
        if lora.dora:
            size += dora.kept(d, linear, bytes_per_value, habits)
        sides[linear.part != "attention"] += size * _passes(d, linear)
    return sides[0], sides[1]


def _passes(d: Dims, linear: Linear) -> Number:
    return d.model.top_k if linear.part == "experts" else 1


def by_math(d: Dims) -> bool:
    """Whether attention is SDPA's without a fused kernel: in fp32 flash attention does not run, and
    the memory-efficient one knows no groups of heads; nor does any know Falcon's single key that
    all heads share.
    """
    if d.setup.attention != "sdpa":
        return False
    if d.model.family == "falcon" and d.model.kv_heads == 1 and d.recipe in TRANSFORMERS_CODE:
        return True
    return d.compute == 4 and 0 < d.model.kv_heads < d.model.heads and d.recipe != "megatron"


def written_out(d: Dims) -> bool:
    """Whether the model's code is Transformers' own, without fused kernels."""
    return d.recipe in TRANSFORMERS_CODE and not (d.setup.kernels or d.setup.compile)


def capped(d: Dims) -> bool:
    """Whether scores and logits pass a ``tanh`` of their own."""
    return d.model.family in SOFTCAP and written_out(d)


def trains_base(d: Dims) -> bool:
    """Whether the language model's own weights get gradients."""
    return d.setup.lora is None and "language" not in d.setup.freeze and d.setup.optimizer != "none"


def keeps_inputs(d: Dims) -> bool:
    """Whether linear layers keep inputs: for weights' gradients, or by old bitsandbytes."""
    return trains_base(d) or bitsandbytes_keeps_inputs(d.setup)


def selective(d: Dims, layer: ActivationBytes, habits: Habits) -> Number:
    """What selective checkpointing keeps of a layer.

    With an eager attention, all but its scores (Korthikanti et al. 2022, section 5). Else the
    layer's input, the output of attention and of every second matrix product (torchtitan's
    per-operation policy, ``torchtitan/distributed/activation_checkpoint.py``): queries, values, the
    first product of the MLP and its last.
    """
    if d.setup.attention == "eager":
        return layer.whole - scores(d, habits) * d.model.heads * d.seq / d.tp
    query, _, value = widths(d)
    products = query + value + _output(d) + _mlp_width(d, d.model.experts > 0)
    return d.compute * (products / d.tp + d.model.hidden / d.outer_tp) + boundary(d, habits)
