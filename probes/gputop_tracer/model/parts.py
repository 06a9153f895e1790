"""Parts of a model by what they are for: which to freeze."""

from __future__ import annotations

from typing import Any, Iterable

_PARTS = {
    "vision": ("vision_tower", "vision_model", "visual", "vision_encoder", "vision_embed_tokens"),
    "projector": (
        "multi_modal_projector",
        "connector",
        "merger",
        "aligner",
        "projector",
        "visual_projection",
    ),
    "language": ("language_model", "text_model", "lm_head"),
}


def freeze(model: Any, parts: Iterable[str]) -> None:
    """Parameters of ``vision``, ``projector``, ``language`` or ``embeddings`` are not trained."""
    for part in parts:
        for path, parameter in model.named_parameters():
            if part_of(path) == part:
                parameter.requires_grad_(False)
        if part == "embeddings":
            for parameter in model.get_input_embeddings().parameters():
                parameter.requires_grad_(False)


def part_of(path: str) -> str:
    """Which part a parameter belongs to; ``language`` for what has no other name."""
    names = path.split(".")
    for part in ("projector", "vision"):
        if any(name in names for name in _PARTS[part]):
            return part
    return "language"
