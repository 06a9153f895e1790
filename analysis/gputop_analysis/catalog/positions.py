"""Models with a table of positions, beyond whose end no sequence goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputop_analysis.vram.setup import ModelShape

_ROWS = {
    "albert": 512,
    "bart": 1024,
    "bert": 512,
    "bigbird_pegasus": 4096,
    "biogpt": 1024,
    "blenderbot": 128,
    "blenderbot-small": 512,
    "camembert": 514,
    "clip": 77,
    "convbert": 512,
    "distilbert": 512,
    "electra": 512,
    "gpt2": 1024,
    "gpt_bigcode": 1024,
    "gpt_neo": 2048,
    "layoutlm": 512,
    "led": 16384,
    "marian": 1024,
    "mbart": 1024,
    "mpnet": 514,
    "opt": 2048,
    "pegasus": 1024,
    "roberta": 514,
    "trocr": 512,
    "whisper": 448,
    "xlm-roberta": 514,
}
"""Rows of the table by family, where a configuration does not say it (transformers' defaults)."""
_FIRST_ROWS: dict[str, int] = dict.fromkeys(("camembert", "mpnet", "roberta", "xlm-roberta"), 2)
"""Rows before that of the first token: of the padding."""
_FIELDS = ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings")
"""Of a configuration, the decoder's own first."""


def max_position(config: Mapping[str, Any]) -> int:
    """Rows of the table of positions that a ``config.json`` describes; of another model the length
    that it says; 0 where it says none.
    """
    said = next((config[field] for field in _FIELDS if config.get(field)), 0)
    return int(said or _ROWS.get(str(config.get("model_type", "")), 0))


def longest(model: ModelShape) -> int:
    """Tokens of the longest sequence that a model has positions for; 0: any length."""
    if model.family not in _ROWS or not model.max_position:
        return 0
    return model.max_position - _FIRST_ROWS.get(model.family, 0)


def default_seq(model: ModelShape, otherwise: int) -> int:
    """Tokens of a sequence where nothing is said: ``otherwise``, or what the model is made for."""
    made_for = longest(model) or model.max_position or otherwise
    return min(otherwise, made_for)
