"""The parameters that one rank holds, part by part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gputop_analysis.catalog.params import layer_params, moe_layers, params
from gputop_analysis.vram.adapters import adapters
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.releases import single_experts
from gputop_analysis.vram.setup import ModelShape

LARGEST_SURPLUS = 0.2
"""Share of the parameters by which a published count may exceed the computed one and still be taken
for layers of a kind that the shape has no words for.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters of one kind on this rank, before any sharding over data-parallel ranks."""

    name: str
    count: Number
    trained: bool
    linear: bool = False
    """Weights of linear layers: what quantisation replaces. Transformers leaves the head out,
    Fabric replaces it too.
    """
    expert: bool = False


def parts(d: Dims) -> tuple[Part, ...]:
    """What tensor, pipeline and expert parallelism leave on this rank (Narayanan et al. 2021,
    section 2; the experts as in Megatron-LM, whole where they are spread over ranks).
    """
    shape, counts = d.model, params(d.model)
    share, dense = d.layers / max(shape.layers, 1), d.dense_layers
    trains = _trained(d)
    small = counts["norms"] + counts["router"] + _surplus(shape, counts)
    mlp_parameters = {moe: layer_params(shape, moe)["mlp"] for moe in (False, True)}
    mlps = dense * mlp_parameters[False] + (d.layers - dense) * mlp_parameters[True]
    if shape.family == "t5":
        mlps = share * counts["mlp"]  # as many again in the decoder
    table = counts["embeddings"] / d.tp
    tied = table * d.last * (1 - d.first) if shape.tied_embeddings else 0
    on_rank = [
        Part(
            "layers", (share * counts["attention"] + mlps) / d.tp, trains("language"), linear=True
        ),
        Part("norms", share * small, trains("language")),
        Part("embeddings", table * d.first, trains("embeddings")),
        Part(
            "head",
            counts["head"] / d.tp * d.last + tied,
            trains("language"),
            linear=d.recipe == "litgpt",
        ),
    ]
    if counts["experts"]:
        experts_per_rank = (
            (d.layers - dense) / moe_layers(shape) * counts["experts"] / (d.ep * d.expert_tp)
        )
        on_rank.append(
            Part(
                "experts",
                experts_per_rank,
                trains("language"),
                linear=single_experts(d.setup),
                expert=True,
            )
        )
    if counts["vision"]:
        on_rank.append(Part("vision", counts["vision"] * d.first, trains("vision")))
    if counts["projector"]:
        on_rank.append(Part("projector", counts["projector"] * d.first, trains("projector")))
    if d.setup.lora and d.setup.modules_to_save:
        saved = {part.name: part.count for part in on_rank}
        names = set(d.setup.modules_to_save) - ({"head"} if shape.tied_embeddings else set())
        copies = sum((saved.get(name, 0) for name in sorted(names)), 0.0 * share)
        on_rank.append(Part("saved", copies, True))
    if d.setup.lora:
        on_rank.append(Part("adapters", share * adapters(shape, d.setup.lora) / d.tp, True))
    return tuple(on_rank)


def _trained(d: Dims):
    freeze = d.setup.freeze
    frozen = {"embeddings": "embeddings" in freeze or "language" in freeze}
    everything = d.setup.lora is not None or d.setup.optimizer == "none"
    return lambda part: not (everything or frozen.get(part, part in freeze))


def _surplus(shape: ModelShape, counts: dict[str, int]) -> int:
    """Parameters of a published count that the shape does not explain."""
    surplus = shape.params - sum(counts.values()) if shape.params else 0
    return surplus if 0 < surplus <= LARGEST_SURPLUS * shape.params else 0


def total(parts: Iterable[Part], trained: bool | None = None) -> Number:
    """Parameters of all parts, or of those that are trained or not."""
    return sum((part.count for part in parts if trained is None or part.trained == trained), 0.0)
