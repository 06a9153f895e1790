"""Which class of transformers trains a configuration, and what a batch for it holds."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch
from torch import nn

_ENCODERS = (
    "bert",
    "roberta",
    "distilbert",
    "camembert",
    "xlm-roberta",
    "electra",
    "deberta",
    "deberta-v2",
    "albert",
)
_IMAGES_ONLY = (
    "vit",
    "deit",
    "beit",
    "swin",
    "convnext",
    "resnet",
    "dinov2",
    "siglip_vision_model",
)
_CLASSES = {
    "masked": "AutoModelForMaskedLM",
    "image": "AutoModelForImageClassification",
    "contrastive": "AutoModel",
    "speech": "AutoModelForSpeechSeq2Seq",
    "sound": "AutoModelForCTC",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image_text": "AutoModelForImageTextToText",
    "causal": "AutoModelForCausalLM",
}
_TASKS_BY_MAPPING = (
    ("image_text", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    ("speech", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
    ("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    ("sound", "MODEL_FOR_CTC_MAPPING_NAMES"),
    ("masked", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    ("causal", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    ("image", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"),
)
"""Tasks in the order in which they are looked for, and where transformers lists their families."""
SECONDS, SAMPLE_RATE = 15, 16_000
"""Of a recording that a model of sound takes."""


def task(config: Any) -> str:
    """What a configuration is trained for: a key of ``_CLASSES``.

    Raises:
        ValueError: transformers has no training head for it that is known here.
    """
    model_type = config.model_type
    if model_type in ("clip", "siglip"):
        return "contrastive"
    if model_type in _ENCODERS:
        return "masked"
    if model_type in _IMAGES_ONLY:
        return "image"
    from transformers.models.auto import modeling_auto

    for task_kind, mapping in _TASKS_BY_MAPPING:
        if model_type in getattr(modeling_auto, mapping, {}):
            return task_kind
    if getattr(config, "vision_config", None) is not None:
        return "image_text"
    if getattr(config, "is_encoder_decoder", False):
        return "seq2seq"
    raise ValueError(
        "transformers trains no %s with one loss of its own: trace the script that does, "
        "gputop estimate train.py" % model_type
    )


def auto_class(config: Any) -> Any:
    """The auto class of transformers that builds a configuration with its training head."""
    import transformers

    return getattr(transformers, _CLASSES[task(config)])


def without_chance(config: Any) -> None:
    """Turn off what drops layers and masks spans at random, whose sizes depend on values."""
    for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
        if getattr(config, name, None):
            setattr(config, name, 0.0)
    if getattr(config, "apply_spec_augment", False):
        config.apply_spec_augment = False


def of_model(model: nn.Module) -> Optional[nn.Module]:
    """The layer that makes logits over a vocabulary: as the model says, else its last linear one
    where that is as wide as the largest embedding; None for a model without.
    """
    for module in model.modules():
        if hasattr(type(module), "get_output_embeddings"):
            try:
                head: Any = module.get_output_embeddings()  # type: ignore[operator]
            except Exception:  # some bodies say so only when they are asked
                continue
            if isinstance(head, nn.Module):
                return head
    widths = [part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)]
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    if widths and linear and linear[-1].out_features == max(widths):
        return linear[-1]
    return None


def experts_in_one_product(config: Any) -> None:
    """Experts one by one depend on the router's values; in one grouped product
    (``torch._grouped_mm``) they do not.
    """
    text = getattr(config, "text_config", None) or config
    counts = (
        getattr(text, name, None)
        for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )
    if any(counts) and hasattr(type(config), "_experts_implementation"):
        config._experts_implementation = "grouped_mm"


def batch(config: Any, setup: Dict[str, Any], dtype: torch.dtype) -> Dict[str, Any]:
    """The model's inputs: fake token ids, labels, and pixels or sound of type ``dtype`` in the
    setup's shapes.
    """
    parallel = setup.get("parallel") or {}
    rows, seq = (
        int(setup.get("micro_batch") or 1),
        int(setup.get("seq") or 2048) // int(parallel.get("cp") or 1),
    )
    task_kind = task(config)
    if task_kind == "image":
        return {"pixel_values": _pixels(config, rows).to(dtype), "labels": _ids(rows)}
    if task_kind == "sound":
        return {"input_values": torch.empty((rows, SECONDS * SAMPLE_RATE), dtype=dtype)}
    if task_kind == "speech":
        return _speech(config, rows, seq, dtype)
    if task_kind == "contrastive":
        length = min(seq, int(getattr(config.text_config, "max_position_embeddings", seq)))
        pixels = _pixels(config.vision_config, rows).to(dtype)
        return {"input_ids": _ids(rows, length), "pixel_values": pixels, "return_loss": True}
    inputs = {"input_ids": _ids(rows, seq), "labels": _ids(rows, seq)}
    if parallel.get("sequence_parallel"):  # else a model counts the positions of its own part
        inputs["position_ids"] = _ids(1, seq)
    if task_kind == "seq2seq":
        return {**inputs, "decoder_input_ids": _ids(rows, seq)}
    return inputs


def _speech(config: Any, rows: int, seq: int, dtype: torch.dtype) -> Dict[str, torch.Tensor]:
    """Whisper's: a spectrogram of as many frames as it always takes, and what is said in it."""
    bins, frames = getattr(config, "num_mel_bins", 0), getattr(config, "max_source_positions", 0)
    if config.model_type != "whisper":
        raise ValueError(
            "what %s hears is not known here: trace the script that trains it, "
            "gputop estimate train.py" % config.model_type
        )
    longest = int(getattr(config, "max_target_positions", seq))
    features = torch.empty((rows, int(bins), 2 * int(frames)), dtype=dtype)
    return {"input_features": features, "labels": _ids(rows, min(seq, longest))}


def _ids(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.long)


def _pixels(config: Any, rows: int) -> torch.Tensor:
    size = int(getattr(config, "image_size", 224))
    return torch.empty((rows, int(getattr(config, "num_channels", 3)), size, size))
