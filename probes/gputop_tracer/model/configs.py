"""A Hugging Face configuration: from a file, a name in the local cache, or a shape."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Dict

_FIELDS = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "d_kv"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
    "vocab": ("vocab_size",),
    "max_position": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "token_types": ("type_vocab_size",),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "shared_experts": ("n_shared_experts",),
    "top_k": ("num_experts_per_tok",),
    "moe_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "first_dense_layers": ("first_k_dense_replace",),
    "mla_q_rank": ("q_lora_rank",),
    "mla_kv_rank": ("kv_lora_rank",),
    "mla_nope_dim": ("qk_nope_head_dim",),
    "mla_rope_dim": ("qk_rope_head_dim",),
    "mla_v_dim": ("v_head_dim",),
}
"""A shape's name of it, and configurations' names, the first known of which is taken."""
_ALIASES = {"kimi_k2": "deepseek_v3", "smolvlm": "idefics3", "pixtral": "llava"}
_WHOLE_ATTENTION = ("mistral", "mixtral", "qwen2", "qwen3", "phi3")
"""Families whose default has a window of attention, and which are traced without."""


class UnknownModel(ValueError):
    """No configuration can be had for what is asked; the message says why."""


def load_config(source: str) -> Any:
    """The configuration in a directory, a ``config.json`` or the local cache of Hugging Face, which
    is not left.

    Raises:
        UnknownModel: there is none.
    """
    from transformers import AutoConfig

    if os.path.isfile(source):
        with open(source, encoding="utf-8") as text:
            return config_from_dict(json.load(text))
    try:
        return AutoConfig.from_pretrained(source, local_files_only=True)
    except Exception as error:
        if str(error).strip():
            first = str(error).strip().splitlines()[0]
        else:
            first = type(error).__name__
        raise UnknownModel(
            "no configuration of %s in the local cache: %s" % (source, first)
        ) from error


def config_from_dict(values: Dict[str, Any]) -> Any:
    """The configuration that a decoded ``config.json`` describes.

    Raises:
        UnknownModel: this transformers does not know its ``model_type``.
    """
    from transformers import AutoConfig

    values = dict(values)
    model_type = str(values.pop("model_type", "llama"))
    values.pop("quantization_config", None)
    try:
        return AutoConfig.for_model(_ALIASES.get(model_type, model_type), **values)
    except ValueError as error:
        raise UnknownModel("this transformers has no model type %s" % model_type) from error


def config_from_shape(shape: Dict[str, Any]) -> Any:
    """The configuration of a model that is known by its dimensions.

    Raises:
        UnknownModel: this transformers does not know the family.
    """
    model_type = shape.get("family") or "llama"
    default_config = config_from_dict({"model_type": model_type})
    values: Dict[str, Any] = {
        "model_type": model_type,
        "tie_word_embeddings": bool(shape.get("tied_embeddings")),
    }
    text = getattr(default_config, "text_config", None)
    fields = fields_of(shape, text if text is not None else default_config)
    if text is None:
        values.update(fields)
    else:
        values["text_config"] = dict(fields, model_type=text.model_type)
    vision = getattr(default_config, "vision_config", None)
    if vision is not None and shape.get("vision_layers"):
        from .vision import vision_fields

        values["vision_config"] = vision_fields(shape, vision)
    if model_type == "clip":
        # as wide as the text in OpenAI's and OpenCLIP's models
        values["projection_dim"] = shape.get("hidden")
    return config_from_dict(values)


def fields_of(shape: Dict[str, Any], known: Any) -> Dict[str, Any]:
    """The dimensions of ``shape`` by the names that a configuration like ``known`` takes."""
    fields = {}
    for ours, theirs in _FIELDS.items():
        name = next((name for name in theirs if _takes(known, name)), None)
        if name is not None and shape.get(ours):
            fields[name] = shape[ours]
    _mend(fields, shape, known)
    return fields


def _takes(known: Any, name: str) -> bool:
    return name in known.to_dict() or name in getattr(known, "attribute_map", {})


def _mend(fields: Dict[str, Any], shape: Dict[str, Any], known: Any) -> None:
    """What a family says in its own way."""
    model_type = known.model_type
    for name, value in _by_family(shape).get(model_type, {}).items():
        if value is not None:
            fields[name] = value
    _mend_head_dim(fields, shape, known)
    if model_type in ("deepseek_v2", "deepseek_v3") and not shape.get("mla_q_rank"):
        fields["q_lora_rank"] = None
    if shape.get("attention_bias") is not None and _takes(known, "attention_bias"):
        fields["attention_bias"] = shape["attention_bias"]
    padding_id = getattr(known, "pad_token_id", None) or 0
    if padding_id >= (shape.get("vocab") or math.inf):
        fields["pad_token_id"] = None
    if model_type in _WHOLE_ATTENTION:
        fields["sliding_window"] = None
    if model_type == "gemma3_text":
        is_small = shape.get("hidden", 0) <= 1152  # the 270M and 1B
        fields["sliding_window"] = 512 if is_small else 1024
    if _takes(known, "use_cache"):
        fields["use_cache"] = False


def _by_family(shape: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Fields by ``model_type`` that the table of names lacks; None: the family's default."""
    expert_width = {"intermediate_size": shape.get("moe_ffn") or shape.get("ffn")}
    expert_layers = {"decoder_sparse_step": shape.get("moe_every"), "mlp_only_layers": []}
    kv_heads = shape.get("kv_heads", 0)
    patch = shape.get("vision_patch") or 0
    image_size = patch * math.isqrt(shape.get("max_position") or 0)
    return {
        "mixtral": expert_width,
        "gpt_oss": expert_width,
        "olmoe": expert_width,
        "qwen3_moe": expert_layers,
        "qwen2_moe": expert_layers,
        "falcon": {"multi_query": kv_heads == 1, "new_decoder_architecture": kv_heads > 1},
        "gpt_bigcode": {"multi_query": kv_heads == 1},
        "opt": {"word_embed_proj_dim": shape.get("hidden")},
        "t5": {
            "num_decoder_layers": shape.get("layers"),
            "feed_forward_proj": "gated-gelu" if shape.get("gated_mlp") else "relu",
        },
        "vit": {
            "patch_size": patch or None,
            "image_size": image_size or None,
            "num_labels": shape.get("vocab") or None,
        },
        "deepseek_v2": {"n_group": 1, "topk_group": 1, "topk_method": "greedy"},
        "deepseek_v3": {"n_group": 1, "topk_group": 1},
        "llama4_text": {
            "intermediate_size": shape.get("moe_ffn"),
            "intermediate_size_mlp": shape.get("ffn"),
            "interleave_moe_layer_step": shape.get("moe_every"),
        },
    }


def _mend_head_dim(fields: Dict[str, Any], shape: Dict[str, Any], known: Any) -> None:
    has_own = isinstance(getattr(type(known), "head_dim", None), property)
    if shape.get("mla_kv_rank") or has_own:
        fields.pop("head_dim", None)  # MLA's and Falcon's follow from the rest
    elif shape.get("head_dim") and not {"head_dim", "d_kv"} & set(fields):
        # read by the modules though the configuration does not name it
        fields["head_dim"] = shape["head_dim"]
