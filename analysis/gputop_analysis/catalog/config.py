"""The shape of a model out of its Hugging Face ``config.json``, in any family's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_analysis.vram.setup import ModelShape

Config = Mapping[str, Any]

_NAMES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv"),
    "head_dim": ("head_dim", "kv_channels", "d_kv"),
    "ffn": (
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        "d_ff",
        "ffn_hidden_size",
        "encoder_ffn_dim",
        "hidden_dim",
    ),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "max_position": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "max_sequence_length",
    ),
    "token_types": ("type_vocab_size",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "shared_experts": ("n_shared_experts",),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k"),
    "moe_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "first_dense_layers": ("first_k_dense_replace",),
    "moe_every": ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step"),
    "mla_q_rank": ("q_lora_rank",),
    "mla_kv_rank": ("kv_lora_rank",),
    "mla_nope_dim": ("qk_nope_head_dim",),
    "mla_rope_dim": ("qk_rope_head_dim",),
    "mla_v_dim": ("v_head_dim",),
}
_DROPOUTS = ("dropout", "resid_pdrop", "hidden_dropout_prob")
_SCORE_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
_VISION = ("vision_config", "vision_tower_config", "vit_config")
_TIED_BY_DEFAULT = {
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "gpt2",
    "bloom",
    "opt",
    "falcon",
    "mpt",
    "t5",
    "bert",
}
_PLAIN_MLP = {
    *(
        "gpt2",
        "gpt_neox",
        "gptj",
        "gpt_neo",
        "gpt_bigcode",
        "bloom",
        "opt",
        "falcon",
        "mpt",
        "phi",
        "starcoder2",
    ),
    *("apertus", "arcee", "nemotron", "xlm-roberta"),
    *("bert", "roberta", "distilbert", "vit", "clip", "siglip", "codegen"),
}
"""Families whose MLP has two matrices, not three."""
_MLA_FAMILIES = {"deepseek_v2", "deepseek_v3", "kimi_k2"}


def shape_from_config(config: Config) -> ModelShape:
    """The shape that a ``config.json`` describes; nested text and vision parts become one shape.

    Raises:
        ValueError: it does not say what any transformer needs; the message names what is missing.
    """
    text = _part(config, _TEXT)
    outer = str(config.get("model_type", ""))
    family = outer or str(text.get("model_type", "")) or "llama"
    counts = {field: _first(text, names) for field, names in _NAMES.items()}
    missing = [field for field in ("hidden", "layers", "heads") if not counts[field]]
    if missing:
        raise ValueError(
            "this config.json does not describe a transformer: it has no "
            f"{' and no '.join(missing)}"
        )
    _mend(counts, family, text)
    vision = _vision(config, text)
    return ModelShape(
        name=str(config.get("_name_or_path") or family),
        family=family,
        gated_mlp=_gated(family, text),
        tied_embeddings=_tied(family, config, text),
        attention_bias=_bias(text),
        dropout=_dropout(text),
        source="its config.json",
        **counts,
        **vision,
    )


def _part(config: Config, names: tuple[str, ...]) -> Config:
    """A nested part over the outer keys, which hold what the part leaves to them."""
    nested = next((config[name] for name in names if isinstance(config.get(name), Mapping)), None)
    if nested is None:
        return config
    if names is _TEXT:
        nested = _part(nested, names)
    return {**config, **{key: value for key, value in nested.items() if value is not None}}


def _first(config: Config, names: tuple[str, ...]) -> int:
    """The first of these keys that holds a count."""
    for name in names:
        value = config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, list) and value and isinstance(value[0], int):
            return max(value)
    return 0


def _mend(counts: dict[str, int], family: str, text: Config) -> None:
    """What a family says in its own way, and what follows from the rest."""
    counts["moe_every"] = counts["moe_every"] or 1
    counts["kv_heads"] = _kv_heads(counts, family, text) or counts["heads"]
    counts["head_dim"] = counts["head_dim"] or counts["hidden"] // counts["heads"]
    _mend_widths(counts, family, text)
    patch = _first(text, ("patch_size",)) if family == "vit" else 0
    if patch:
        # it sees nothing but its patches
        counts["max_position"] = (_first(text, ("image_size",)) // patch) ** 2
    if family not in _MLA_FAMILIES and not counts["mla_nope_dim"]:
        counts.update(mla_q_rank=0, mla_kv_rank=0, mla_rope_dim=0, mla_v_dim=0)


def _kv_heads(counts: dict[str, int], family: str, text: Config) -> int:
    """Heads of keys and values; 0 where the configuration does not say."""
    attention = text.get("attn_config")
    if isinstance(attention, Mapping) and attention.get("kv_n_heads"):
        return int(attention["kv_n_heads"])
    shares_one = text.get("multi_query", True)
    if family == "gpt_bigcode" and shares_one:
        return 1
    if family == "falcon" and not text.get("new_decoder_architecture"):
        return 1 if shares_one else counts["heads"]
    return counts["kv_heads"]


def _mend_widths(counts: dict[str, int], family: str, text: Config) -> None:
    """Of the dense MLP and of an expert."""
    if family == "mpt" and not counts["ffn"]:
        counts["ffn"] = int(text.get("expansion_ratio", 4)) * counts["hidden"]
    if family.startswith("llama4"):
        # its intermediate size is that of an expert
        counts["moe_ffn"] = counts["ffn"]
        counts["ffn"] = int(text.get("intermediate_size_mlp") or counts["ffn"])
    if counts["experts"] and not counts["moe_ffn"]:
        counts["moe_ffn"] = counts["ffn"]
    counts["ffn"] = counts["ffn"] or 4 * counts["hidden"]


def _gated(family: str, text: Config) -> bool:
    if family == "t5":
        return "gated" in str(text.get("feed_forward_proj", ""))
    return family not in _PLAIN_MLP


def _tied(family: str, config: Config, text: Config) -> bool:
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    return bool(tied) if tied is not None else family in _TIED_BY_DEFAULT


def _bias(text: Config) -> bool | None:
    bias = text.get("attention_bias", text.get("qkv_bias"))
    return bias if isinstance(bias, bool) else None


def _dropout(text: Config) -> bool | None:
    """Whether a family that has a dropout of its hidden states uses any; None: it has none."""
    if not any(name in text for name in _DROPOUTS):
        return None
    return any(text.get(name) for name in (*_DROPOUTS, *_SCORE_DROPOUTS))


def _vision(config: Config, text: Config) -> dict[str, int]:
    """Fields of the vision tower; none for a model without one."""
    tower = next((config[name] for name in _VISION if isinstance(config.get(name), Mapping)), None)
    if tower is None:
        if config.get("model_type") == "vit":
            return {"vision_patch": _first(config, ("patch_size",))}
        return {}
    hidden = _first(tower, ("embed_dim", "hidden_size", "width"))
    if config.get("model_type") in ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"):
        hidden = _first(tower, ("hidden_size", "embed_dim"))
    ffn = _first(tower, ("intermediate_size", "ffn_dim")) or int(tower.get("mlp_ratio", 4) * hidden)
    return {
        "vision_layers": _first(tower, ("num_hidden_layers", "depth", "layers")),
        "vision_hidden": hidden,
        "vision_heads": _first(tower, ("num_attention_heads", "num_heads", "attention_heads")),
        "vision_ffn": ffn,
        "vision_patch": _first(tower, ("patch_size", "spatial_patch_size")),
        "projector_params": (hidden + text["hidden_size"]) * text["hidden_size"]
        if "hidden_size" in text
        else 0,
    }
