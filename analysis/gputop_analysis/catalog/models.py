"""The models of the packaged table, by Hugging Face id or by short name."""

from __future__ import annotations

from functools import cache
from typing import Any

from gputop_analysis.catalog.model_names import hf_ids, match_name
from gputop_analysis.data import table
from gputop_analysis.vram.setup import ModelShape

_COUNTS = {
    "hidden": "hidden",
    "layers": "layers",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "ffn": "ffn",
    "vocab": "vocab",
    "max_position": "max_position",
    "experts": "n_experts",
    "shared_experts": "n_shared_experts",
    "top_k": "top_k",
    "moe_ffn": "moe_ffn",
    "shared_ffn": "shared_ffn",
    "first_dense_layers": "first_dense_layers",
    "mla_q_rank": "mla_q_lora_rank",
    "mla_kv_rank": "mla_kv_lora_rank",
    "mla_nope_dim": "mla_qk_nope_head_dim",
    "mla_rope_dim": "mla_qk_rope_head_dim",
    "mla_v_dim": "mla_v_head_dim",
    "vision_layers": "vision_layers",
    "vision_hidden": "vision_hidden",
    "vision_heads": "vision_heads",
    "vision_ffn": "vision_ffn",
    "vision_patch": "vision_patch",
    "vision_image": "vision_image",
    "vision_params": "vision_params",
    "projector_params": "projector_params",
}
"""Fields of a shape and the columns they come from."""
TOKEN_TYPES = {"bert": 2, "roberta": 1, "xlm-roberta": 1}
"""Rows of the table for the sentences of a pair."""


def models() -> tuple[ModelShape, ...]:
    """All models of the table, in its order."""
    return tuple(map(_shape, _rows()))


def model(name: str) -> ModelShape:
    """The model that a name means; see ``match_model``."""
    return match_model(name)[0]


def match_model(name: str) -> tuple[ModelShape, str]:
    """The model that a name of the table, a Hugging Face id or a line of a log means, and what is
    to be said of that.

    Letter case, separators, the owner, quantisation and what says how it was tuned (``-instruct``)
    may differ; a name without a release means the first one of the table.

    Raises:
        LookupError: none of that name; the message lists the five nearest.
    """
    matched = match_name(name)
    return _shape(matched.row), matched.note


def hf_id(shape: ModelShape) -> str:
    """Its Hugging Face id; its name for one that is not of the table."""
    return hf_ids().get(shape.name, shape.name)


@cache
def _rows() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in table("models.csv")}


@cache
def _shape(name: str) -> ModelShape:
    row = _rows()[name]
    counts: dict[str, Any] = {field: _count(row[column]) for field, column in _COUNTS.items()}
    return ModelShape(
        name=row["name"],
        family=row["arch"],
        gated_mlp=row["gated_mlp"] == "True",
        tied_embeddings=row["tied_embeddings"] == "True",
        moe_every=_count(row["moe_every"]) or 1,
        token_types=TOKEN_TYPES.get(row["arch"], 0),
        params=_count(row["total_params_official"] or row["total_params_computed"]),
        source=row["source"],
        **counts,
    )


def _count(text: str) -> int:
    if text and not text.isdigit():
        return int(float(text))
    return int(text or 0)
