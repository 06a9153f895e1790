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


def task(config: Any) -> str:
    """``masked``, ``image``, ``contrastive``, ``seq2seq``, ``image_text`` or ``causal``."""
    model_type = config.model_type
    if model_type in ("clip", "siglip"):
        return "contrastive"
    if model_type in _ENCODERS:
        return "masked"
    if model_type in _IMAGES_ONLY:
        return "image"
    if getattr(config, "vision_config", None) is not None:
        return "image_text"
    if getattr(config, "is_encoder_decoder", False):
        return "seq2seq"
    return "causal"


def auto_class(config: Any) -> Any:
    """The auto class of transformers that builds a configuration with its training head."""
    import transformers

    names = {
        "masked": "AutoModelForMaskedLM",
        "image": "AutoModelForImageClassification",
        "contrastive": "AutoModel",
        "seq2seq": "AutoModelForSeq2SeqLM",
        "image_text": "AutoModelForImageTextToText",
        "causal": "AutoModelForCausalLM",
    }
    return getattr(transformers, names[task(config)])


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


def batch(config: Any, setup: Dict[str, Any]) -> Dict[str, Any]:
    """The model's inputs: fake token ids, labels and pixels of the setup's shapes."""
    parallel = setup.get("parallel") or {}
    rows, seq = (
        int(setup.get("micro_batch") or 1),
        int(setup.get("seq") or 2048) // int(parallel.get("cp") or 1),
    )
    task_kind = task(config)
    if task_kind == "image":
        return {"pixel_values": _pixels(config, rows), "labels": _ids(rows)}
    if task_kind == "contrastive":
        length = min(seq, int(getattr(config.text_config, "max_position_embeddings", seq)))
        pixels = _pixels(config.vision_config, rows)
        return {"input_ids": _ids(rows, length), "pixel_values": pixels, "return_loss": True}
    inputs = {"input_ids": _ids(rows, seq), "labels": _ids(rows, seq)}
    if parallel.get("sequence_parallel"):  # else a model counts the positions of its own part
        inputs["position_ids"] = _ids(1, seq)
    if task_kind == "seq2seq":
        return {**inputs, "decoder_input_ids": _ids(rows, seq)}
    return inputs


def _ids(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.long)


def _pixels(config: Any, rows: int) -> torch.Tensor:
    size = int(getattr(config, "image_size", 224))
    return torch.empty((rows, int(getattr(config, "num_channels", 3)), size, size))
