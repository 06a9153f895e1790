"""The models of the packaged table, by Hugging Face id or by short name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any

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
NEAREST = 5
TOKEN_TYPES = 2
"""Of BERT: the two sentences of a pair."""
_TUNED = re.compile(r"\b(?:meta|hf|base|instruct|chat|it|pt|text|multimodal|deduped)\b")
_VERSION = re.compile(r"\bv\d+(?:\.\d+)?\b|\b\d{4}\b")


def models() -> tuple[ModelShape, ...]:
    """All models of the table, in its order."""
    return tuple(map(_shape, _rows()))


def model(name: str) -> ModelShape:
    """The model of that Hugging Face id or short name.

    Letter case, separators, the owner and what says how it was tuned (``-instruct``) may differ; a name without a
    version means the first one of the table.

    Raises:
        LookupError: none of that name; the message lists the five nearest.
    """
    for spelling in SPELLINGS:
        if (found := _index(spelling).get(spelling(name))) is not None:
            return _shape(found)
    raise LookupError(f"no model {name!r} in the catalog; the nearest names are {', '.join(nearest_models(name))}")


def hf_id(shape: ModelShape) -> str:
    """Its Hugging Face id; its name for one that is not of the table."""
    return _ids().get(shape.name, shape.name)


def nearest_models(name: str, count: int = NEAREST) -> tuple[str, ...]:
    """The short names most like ``name``, the nearest first."""
    return nearest(name, tuple(_rows()), count)


def nearest(name: str, names: tuple[str, ...], count: int = NEAREST) -> tuple[str, ...]:
    """Those of ``names`` most like ``name``, the nearest first."""
    from difflib import SequenceMatcher  # slow to import, and only a mistake needs it

    wanted = _plain(name).rpartition("/")[2]

    def unlike(other: str) -> float:
        return -SequenceMatcher(None, wanted, _plain(other), autojunk=False).ratio()

    return tuple(sorted(names, key=unlike)[:count])


@cache
def _rows() -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in table("models.csv")}


@cache
def _ids() -> dict[str, str]:
    return {row["name"]: row["hf_id"] for row in table("models.csv") if "/" in row["hf_id"] and " " not in row["hf_id"]}


@cache
def _index(spelling: Callable[[str], str]) -> dict[str, str]:
    """Names of the table by every name and id, in one of ``SPELLINGS``: most are found by the first."""
    index: dict[str, str] = {}
    for called, name in chain(zip(_rows(), _rows(), strict=True), ((called, name) for name, called in _ids().items())):
        index.setdefault(spelling(called), name)
    return index


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _untuned(name: str) -> str:
    """Without owner, separators and what says how it was tuned."""
    return re.sub(r"[^a-z0-9.]", "", _TUNED.sub("", _plain(name).rpartition("/")[2]))


def _unversioned(name: str) -> str:
    return _untuned(_VERSION.sub("", _plain(name)))


SPELLINGS = (_plain, _untuned, _unversioned)
"""How a name is compared, from exact to liberal."""


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
        token_types=TOKEN_TYPES if row["arch"] == "bert" else 0,
        params=_count(row["total_params_official"] or row["total_params_computed"]),
        source=row["source"],
        **counts,
    )


def _count(text: str) -> int:
    return int(float(text)) if text and not text.isdigit() else int(text or 0)
