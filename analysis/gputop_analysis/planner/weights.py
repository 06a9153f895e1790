"""How many parameters one rank holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.catalog.params import is_moe, layer_params, moe_layers, params
from gputop_analysis.planner.layout import Floats, Layouts
from gputop_analysis.vram.setup import ModelShape


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Parameters of one rank of the fullest stage, before data-parallel sharding."""

    dense: Floats
    experts: Floats
    layer: Floats
    """Of one layer on average, what ZeRO-3 gathers at once."""


def held(model: ModelShape, layouts: Layouts, stage_layers: Floats) -> RankParameters:
    """A stage of ``stage_layers`` layers with embedding (stage 0) or head; one stage: both."""
    moes = moe_layers(model)
    dense_layer, moe_dense, experts = _per_layer(model)
    share = moes / max(model.layers, 1)
    mean_dense = (1 - share) * dense_layer + share * moe_dense
    counts = params(model)
    outer = counts["embeddings"] + counts["head"]
    ends = np.where(layouts.pp > 1, max(counts["embeddings"], counts["head"]), outer)
    dense = (stage_layers * mean_dense + ends) / layouts.tp
    routed = stage_layers * share * experts / (layouts.expert_tp * layouts.ep)
    layer = mean_dense / layouts.tp + share * experts / (layouts.expert_tp * layouts.ep)
    return RankParameters(dense, routed, layer)


def total(model: ModelShape) -> int:
    return model.params or sum(params(model).values())


def _per_layer(model: ModelShape) -> tuple[float, float, float]:
    """Parameters of a dense layer, an MoE layer without routed experts, and those experts."""
    dense = 0.0
    if model.ffn:
        dense = float(sum(layer_params(model, False).values()))
    if not any(is_moe(model, i) for i in range(model.layers)):
        return dense, 0.0, 0.0
    moe = layer_params(model, True)
    return dense, float(sum(moe.values()) - moe["experts"]), float(moe["experts"])
