"""The parameters that one rank holds, part by part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gputop_analysis.catalog.params import Linear, is_moe, layer_params, linears, moe_layers, params
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.setup import Lora, ModelShape

LARGEST_SURPLUS = 0.2
"""Share of the parameters by which a published count may exceed the computed one and still be taken for layers of a
kind that the shape has no words for."""


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters of one kind on this rank, before any sharding over data-parallel ranks."""

    name: str
    count: Number
    trained: bool
    linear: bool = False
    """Weights of linear layers inside the transformer's layers: what quantisation replaces."""
    expert: bool = False


def parts(d: Dims) -> tuple[Part, ...]:
    """What tensor, pipeline and expert parallelism leave on this rank (Narayanan et al. 2021, section 2; the experts
    as in Megatron-LM, whole where they are spread over ranks)."""
    shape, counts = d.model, params(d.model)
    share, dense = d.layers / max(shape.layers, 1), d.dense_layers
    trains = _trained(d)
    small = counts["norms"] + counts["router"] + _surplus(shape, counts)
    each = {moe: layer_params(shape, moe)["mlp"] for moe in (False, True)}
    mlps = dense * each[False] + (d.layers - dense) * each[True]
    if shape.family == "t5":
        mlps = share * counts["mlp"]  # as many again in the decoder
    table = counts["embeddings"] / d.tp
    tied = table * d.last * (1 - d.first) if shape.tied_embeddings else 0
    found = [
        Part("layers", (share * counts["attention"] + mlps) / d.tp, trains("language"), linear=True),
        Part("norms", share * small, trains("language")),
        Part("embeddings", table * d.first, trains("embeddings")),
        Part("head", counts["head"] / d.tp * d.last + tied, trains("language")),
    ]
    if counts["experts"]:
        whole = (d.layers - dense) / moe_layers(shape) * counts["experts"] / (d.ep * d.expert_tp)
        found.append(Part("experts", whole, trains("language"), linear=True, expert=True))
    if counts["vision"]:
        found.append(Part("vision", counts["vision"] * d.first, trains("vision")))
    if counts["projector"]:
        found.append(Part("projector", counts["projector"] * d.first, trains("projector")))
    if d.setup.lora:
        found.append(Part("adapters", share * adapters(shape, d.setup.lora) / d.tp, True))
    return tuple(found)


def _trained(d: Dims):
    freeze = d.setup.freeze
    frozen = {"embeddings": "embeddings" in freeze or "language" in freeze}
    everything = d.setup.lora is not None or d.setup.optimizer == "none"
    return lambda part: not (everything or frozen.get(part, part in freeze))


def _surplus(shape: ModelShape, counts: dict[str, int]) -> int:
    """Parameters of a published count that the shape does not explain."""
    surplus = shape.params - sum(counts.values()) if shape.params else 0
    return surplus if 0 < surplus <= LARGEST_SURPLUS * shape.params else 0


def adapters(shape: ModelShape, lora: Lora) -> int:
    """Parameters of all LoRA adapters: ``rank x (inputs + outputs)`` a target (Hu et al. 2021, section 4.1)."""
    moe = moe_layers(shape)
    of_layer = {kind: _adapter(linears(shape, kind), lora) for kind in (False, True) if _has(shape, kind)}
    return moe * of_layer.get(True, 0) + (shape.layers - moe) * of_layer.get(False, 0)


def _has(shape: ModelShape, moe: bool) -> bool:
    return any(is_moe(shape, layer) == moe for layer in range(shape.layers))


def _adapter(layer: Iterable[Linear], lora: Lora) -> int:
    return sum(
        linear.copies * lora.rank * (linear.inputs + linear.outputs) for linear in layer if targeted(linear, lora)
    )


def targeted(linear: Linear, lora: Lora) -> bool:
    """Whether an adapter sits on that layer; a fused projection is hit by the name of any of its pieces."""
    names = lora.targets
    if "all-linear" in names:
        return True
    own = linear.name.rsplit(".", 1)[-1]
    return own in names or linear.name in names or any(own in FUSED.get(name, ()) for name in names)


FUSED = {
    "q_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv", "query", "q", "q_b_proj"),
    "v_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv", "value", "v", "kv_b_proj"),
    "k_proj": ("query_key_value", "qkv_proj", "c_attn", "Wqkv", "key", "k", "kv_b_proj"),
    "o_proj": ("dense", "out_proj"),
    "gate_proj": ("gate_up_proj",),
    "up_proj": ("gate_up_proj", "fc1", "c_fc", "dense_h_to_4h"),
    "down_proj": ("fc2", "dense_4h_to_h"),
}
"""What peers call the layers that LoRA's usual targets name."""


def total(found: Iterable[Part], trained: bool | None = None) -> Number:
    """Parameters of all parts, or of those that are trained or not."""
    return sum((part.count for part in found if trained is None or part.trained == trained), 0.0)
