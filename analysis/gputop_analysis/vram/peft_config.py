"""Adapters of peft by their configuration, as ``adapter_config.json`` has it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAMES = """
    adalora adamss adaption_prompt beft boft c3a deft delora fourierft frod glora gralora hira hra
    ia3 lily ln_tuning loha lokr lora miss oft osf p_tuning peanut prefix_tuning prompt_tuning psoft
    pvera randlora road shira tinylora trainable_tokens unilora vblora vera waveft
"""
KINDS: tuple[str, ...] = tuple(_NAMES.split())
"""Kinds of adapter that peft 0.21 makes for a language model (``PeftType``), in lower case."""
OF_VALUES = frozenset(("adamss", "boft", "frod", "shira", "unilora", "vblora", "waveft"))
"""Kinds that peft sets up, or computes, by values of weights, which fake tensors do not have."""
_OF_A_SAVED_ADAPTER = (
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "peft_version",
    "revision",
)
"""Fields that say nothing of how the adapter is trained; a saved one is in inference mode."""
_PLAIN_LORA = frozenset(
    ("peft_type", "task_type", "r", "target_modules", "lora_dropout", "use_dora", "modules_to_save")
)
_FREE = frozenset(
    (
        "alpha_pattern",
        "bias",
        "fan_in_fan_out",
        "init_lora_weights",
        "lora_alpha",
        "megatron_core",
        "qalora_group_size",
        "use_rslora",
    )
)
"""Fields of LoRA that take no memory with the values that ``as_lora`` lets pass."""


def text_of(value: str) -> str:
    """The configuration that a user names, as one line of JSON; empty: none.

    Args:
        value: a kind of ``KINDS``, a folder or file of ``adapter_config.json``, or its JSON.

    Raises:
        ValueError: it is none of these.
    """
    value = value.strip()
    if not value:
        return ""
    if value.lower() in KINDS:
        return _line({"peft_type": value.upper()})
    config = _read(value)
    if not isinstance(config, dict) or not isinstance(config.get("peft_type"), str):
        raise ValueError(f"adapter {_short(value)} names no peft_type")
    return _line(config)


def fields(text: str) -> dict[str, Any]:
    """The configuration of a line that ``text_of`` has written."""
    config: dict[str, Any] = json.loads(text)
    return config


def kind(text: str) -> str:
    """Which adapter it is, in lower case as in ``KINDS``."""
    return str(fields(text)["peft_type"]).lower()


def as_lora(text: str) -> dict[str, Any] | None:
    """The options of a LoRA adapter that say all of its configuration; None: they cannot."""
    config = fields(text)
    if kind(text) != "lora":
        return None
    names = {name for name, value in config.items() if value}
    if names - _PLAIN_LORA - _FREE or config.get("bias", "none") != "none":
        return None
    targets = config.get("target_modules") or ("q_proj", "v_proj")
    if isinstance(targets, str) and targets != "all-linear":
        return None  # a pattern
    return {
        "lora_rank": config.get("r", 8),
        "lora_targets": (targets,) if isinstance(targets, str) else tuple(targets),
        "lora_dropout": config.get("lora_dropout", 0.0),
        "dora": bool(config.get("use_dora")),
        "modules_to_save": tuple(config.get("modules_to_save") or ()),
    }


def _read(value: str) -> Any:
    text = value
    if not value.startswith("{"):
        path = Path(value, "adapter_config.json") if Path(value).is_dir() else Path(value)
        if not path.is_file():
            from difflib import get_close_matches

            near = ", ".join(get_close_matches(value.lower(), KINDS, n=3))
            hint = f" (nearest: {near})" if near else ""
            raise ValueError(
                f"adapter takes a kind of peft{hint}, or an adapter_config.json, not {value!r}: "
                f"kinds are {', '.join(KINDS)}"
            )
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ValueError(f"adapter {value!r} cannot be read: {error.strerror}") from None
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"adapter {_short(value)} is no JSON: {error}") from None


def _line(config: Mapping[str, Any]) -> str:
    """Without what is open and what a saved adapter says of itself."""
    settings = {
        name: value
        for name, value in config.items()
        if value is not None and name not in _OF_A_SAVED_ADAPTER
    }
    return json.dumps(settings, sort_keys=True)


def _short(value: str) -> str:
    return value if len(value) <= 60 else value[:57] + "..."
