"""How many parameters a transformer of a given shape has, part by part.

Checked against the counts that the makers publish (``total_params_official`` of ``models.csv``).
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.catalog.families import Traits, traits
from gputop_analysis.vram.setup import ModelShape

MLLAMA_EVERY = 5
"""Every fifth layer of a Llama 3.2 Vision model attends to the image."""
POOLED = ("bert", "roberta", "xlm-roberta")
"""Families with kinds of tokens, and a pooler over the first one."""
MLLAMA_IMAGE_ROWS = 8
"""Rows of its embedding beyond the vocabulary."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer of one transformer layer; counts of features."""

    name: str
    """As its module is called, what LoRA's targets are matched with."""
    part: str
    """``attention``, ``mlp``, ``shared`` (expert) or ``experts``."""
    inputs: int
    outputs: int
    bias: bool = False
    copies: int = 1
    """Of an expert."""
    role: str = ""
    """``q``, ``k``, ``v``, ``qkv``, ``out``, ``gate``, ``up``, ``gate_up`` or ``down``, whatever
    its family calls it.
    """

    @property
    def params(self) -> int:
        return self.copies * (self.inputs * self.outputs + self.bias * self.outputs)


def is_moe(shape: ModelShape, layer: int) -> bool:
    """Whether the layer routes tokens to experts (``moe_every`` counts from 1, as Llama 4 does)."""
    return (
        shape.experts > 0
        and layer >= shape.first_dense_layers
        and (layer + 1) % max(shape.moe_every, 1) == 0
    )


def moe_layers(shape: ModelShape) -> int:
    """How many layers have experts."""
    return sum(is_moe(shape, layer) for layer in range(shape.layers))


def params(shape: ModelShape) -> dict[str, int]:
    """Parameters by part, all layers together.

    ``embeddings`` (with positions), ``attention``, ``mlp`` (dense layers and shared experts),
    ``experts``, ``router``, ``norms``, ``head`` (0 when tied), ``vision``, ``projector``.
    """
    family = traits(shape.family)
    parts = {
        "embeddings": _embeddings(shape, family),
        "attention": 0,
        "mlp": 0,
        "experts": 0,
        "router": 0,
    }
    parts |= {"norms": _outer_norms(shape, family), "head": _head(shape, family)}
    dense = shape.layers - moe_layers(shape)
    for moe, count in ((False, dense), (True, shape.layers - dense)):
        if count:
            for part, size in layer_params(shape, moe).items():
                parts[part] += count * size
    _add_family_extras(parts, shape)
    parts["vision"] = shape.vision_params or vision_params(shape)
    parts["projector"] = shape.projector_params
    return parts


def total(shape: ModelShape) -> int:
    """All parameters, computed from the shape."""
    return sum(params(shape).values())


def layer_params(shape: ModelShape, moe: bool | None = None) -> dict[str, int]:
    """Parameters of one layer by part, as in ``params``; ``moe`` None: of the last layer."""
    moe = is_moe(shape, shape.layers - 1) if moe is None else moe
    family = traits(shape.family)
    parts = {
        "attention": 0,
        "mlp": 0,
        "experts": 0,
        "router": 0,
        "norms": _layer_norms(shape, family),
    }
    for linear in linears(shape, moe):
        parts["mlp" if linear.part == "shared" else linear.part] += linear.params
    parts["attention"] += shape.heads * family.sinks
    if moe:
        parts["router"] = (
            shape.hidden * shape.experts
            + family.router_bias * shape.experts
            + family.shared_gate * shape.hidden
        )
    return parts


def linears(shape: ModelShape, moe: bool | None = None) -> tuple[Linear, ...]:
    """The linear layers of one layer, without the router; ``moe`` None: of the last layer."""
    moe = is_moe(shape, shape.layers - 1) if moe is None else moe
    family = traits(shape.family)
    if shape.mla_kv_rank:
        attention = _mla(shape)
    else:
        attention = _attention(shape, family)
    if not moe:
        return (*attention, *_mlp(shape, family, "mlp", shape.ffn, bias=family.mlp_bias))
    shared = shared_width(shape)
    return (
        *attention,
        *(_mlp(shape, family, "shared", shared, bias=False) if shared else ()),
        *_mlp(
            shape,
            family,
            "experts",
            shape.moe_ffn or shape.ffn,
            bias=family.expert_bias,
            copies=shape.experts,
        ),
    )


def shared_width(shape: ModelShape) -> int:
    """Width of all shared experts of a layer together; 0 where there are none."""
    if traits(shape.family).always_shared:
        return shape.moe_ffn or shape.ffn
    return shape.shared_ffn or shape.shared_experts * shape.moe_ffn


def head_width(shape: ModelShape) -> int:
    """Features of one attention head."""
    return shape.head_dim or shape.hidden // max(shape.heads, 1)


def _attention(shape: ModelShape, kind: Traits) -> tuple[Linear, ...]:
    queries = shape.heads * head_width(shape)
    keys = (shape.kv_heads or shape.heads) * head_width(shape)
    if shape.attention_bias is None:
        bias = kind.qkv_bias
    else:
        bias = shape.attention_bias
    out = Linear(kind.out, "attention", queries, shape.hidden, kind.out_bias, role="out")
    if len(kind.qkv) == 1:
        fused = queries + 2 * keys
        return Linear(kind.qkv[0], "attention", shape.hidden, fused, bias, role="qkv"), out
    widths = (queries, keys, keys)
    inputs = (
        Linear(name, "attention", shape.hidden, width, bias, role=role)
        for name, width, role in zip(kind.qkv, widths, "qkv", strict=True)
    )
    return *inputs, out


def _mla(shape: ModelShape) -> tuple[Linear, ...]:
    """Multi-head latent attention (DeepSeek-V2, Liu et al. 2024, section 2.1)."""
    hidden, heads = shape.hidden, shape.heads
    query = heads * (shape.mla_nope_dim + shape.mla_rope_dim)
    if shape.mla_q_rank:
        queries = (
            Linear("q_a_proj", "attention", hidden, shape.mla_q_rank),
            Linear("q_b_proj", "attention", shape.mla_q_rank, query, role="q"),
        )
    else:
        queries = (Linear("q_proj", "attention", hidden, query, role="q"),)
    return (
        *queries,
        Linear("kv_a_proj_with_mqa", "attention", hidden, shape.mla_kv_rank + shape.mla_rope_dim),
        Linear(
            "kv_b_proj",
            "attention",
            shape.mla_kv_rank,
            heads * (shape.mla_nope_dim + shape.mla_v_dim),
            role="kv",
        ),
        Linear("o_proj", "attention", heads * shape.mla_v_dim, hidden, role="out"),
    )


def _mlp(
    shape: ModelShape, kind: Traits, part: str, width: int, *, bias: bool, copies: int = 1
) -> tuple[Linear, ...]:
    down = Linear(kind.down, part, width, shape.hidden, bias, copies, "down")
    if not shape.gated_mlp:
        return Linear(kind.up, part, shape.hidden, width, bias, copies, "up"), down
    rows_of_gate = 2 * width // len(kind.gate)
    roles = ("gate", "up") if len(kind.gate) > 1 else ("gate_up",)
    first = (
        Linear(name, part, shape.hidden, rows_of_gate, bias, copies, role)
        for name, role in zip(kind.gate, roles, strict=True)
    )
    return (*first, down)


def _norm(kind: Traits, width: int) -> int:
    return {"rms": width, "layer": 2 * width, "layer-weight": width, "none": 0}[kind.norm]


def _layer_norms(shape: ModelShape, kind: Traits) -> int:
    count = kind.norms_per_layer
    if shape.family == "falcon" and (shape.kv_heads or shape.heads) == 1:
        count = 1  # the first generation shares one norm between attention and MLP
    size = count * _norm(kind, shape.hidden)
    if kind.qk_norm == "head":
        size += 2 * head_width(shape)
    if kind.qk_norm == "all":
        size += (shape.heads + (shape.kv_heads or shape.heads)) * head_width(shape)
    return size + (shape.mla_q_rank + shape.mla_kv_rank)


def _outer_norms(shape: ModelShape, kind: Traits) -> int:
    return (kind.final_norm + kind.embedding_norm) * _norm(kind, shape.hidden)


def _embeddings(shape: ModelShape, kind: Traits) -> int:
    if shape.family == "vit":
        return 0
    rows = shape.vocab + (MLLAMA_IMAGE_ROWS if shape.family == "mllama" else 0)
    if kind.learned_positions:
        rows += shape.max_position + kind.position_offset
    if shape.family in POOLED:
        rows += shape.token_types
    return rows * shape.hidden


def _head(shape: ModelShape, kind: Traits) -> int:
    if shape.family == "vit":
        return shape.vocab * (shape.hidden + 1)
    return (
        0 if shape.tied_embeddings or kind.encoder else shape.vocab * shape.hidden
    ) + kind.head_bias * shape.vocab


def _add_family_extras(parts: dict[str, int], shape: ModelShape) -> None:
    """What only one family has."""
    if shape.family == "mllama":  # norms of queries and keys, two gates
        parts["norms"] += shape.layers // MLLAMA_EVERY * (2 * head_width(shape) + 2)
    if shape.family in POOLED:
        parts["head"] += shape.hidden * (shape.hidden + 1)
    if shape.family == "t5":
        _add_t5_decoder(parts, shape)
    if shape.family == "vit":  # the class token besides
        parts["embeddings"] += (
            _patches(shape.hidden, shape.vision_patch, shape.max_position) + shape.hidden
        )


def _add_t5_decoder(parts: dict[str, int], shape: ModelShape) -> None:
    """As many layers again, each with attention to the encoder; 32 buckets of relative positions on
    both sides.
    """
    once = {part: parts[part] for part in ("attention", "mlp")}
    parts["attention"] += 2 * once["attention"] + 2 * 32 * shape.heads
    parts["mlp"] += once["mlp"]
    parts["norms"] += (3 * shape.layers + 1) * shape.hidden


def _patches(hidden: int, patch: int, positions: int) -> int:
    return hidden * (3 * patch * patch + 1) + (positions + 1) * hidden


def vision_params(shape: ModelShape) -> int:
    """Of a plain vision transformer of that shape (Dosovitskiy et al. 2021): what is used where
    nobody has counted.
    """
    if not shape.vision_layers:
        return 0
    hidden, ffn = shape.vision_hidden, shape.vision_ffn or 4 * shape.vision_hidden
    layer = 4 * hidden * (hidden + 1) + 2 * hidden * ffn + ffn + hidden + 4 * hidden
    return (
        shape.vision_layers * layer + _patches(hidden, shape.vision_patch or 14, 1024) + 4 * hidden
    )
