"""Configuration files: what kind one is, and what it holds."""

from __future__ import annotations

import json
from typing import Any

_OF_DEEPSPEED = {
    "zero_optimization",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "fp16",
    "bf16",
}


class UnknownFormatError(ValueError):
    """Neither a DeepSpeed JSON nor an accelerate YAML; the message says what was seen."""


def kind_of(config: dict[str, Any], name: str) -> str:
    """``accelerate`` or ``deepspeed``.

    Raises:
        UnknownFormatError: it is neither.
    """
    if "distributed_type" in config or "compute_environment" in config:
        return "accelerate"
    if _OF_DEEPSPEED & set(config):
        return "deepspeed"
    raise UnknownFormatError(
        f"{name} has no distributed_type (accelerate) and no zero_optimization or batch (DeepSpeed)"
    )


def parsed(text: str, name: str) -> dict[str, Any]:
    """A JSON or YAML text's mapping.

    Raises:
        UnknownFormatError: it cannot be read, or holds no mapping.
    """
    if not text.strip():
        raise UnknownFormatError(f"{name} is empty")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as wrong:
        if name.endswith(".json"):
            raise UnknownFormatError(f"{name} is no JSON: {wrong}") from None
        data = _yaml(text, name)
    if not isinstance(data, dict):
        raise UnknownFormatError(f"{name} holds no mapping of keys to values")
    return data


def _yaml(text: str, name: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as wrong:
        raise UnknownFormatError(f"{name} is no YAML: {' '.join(str(wrong).split())}") from None
