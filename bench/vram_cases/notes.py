"""What a row's notes say beyond its columns: JSON, or ``key=value`` pairs with
semicolons between.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gputop_analysis.vram.options import SAVED_AS

PROJECTIONS = {
    "lora_query": "q_proj",
    "lora_key": "k_proj",
    "lora_value": "v_proj",
    "lora_projection": "o_proj",
    "lora_mlp": "mlp",
}
"""LitGPT's switches of LoRA and the layers that they adapt."""
MLP = ("gate_proj", "up_proj", "down_proj")
_NAMES = re.compile(
    r"\b(?:[qkvo]_proj|(?:gate|up|down|qkv|gate_up|out|c)_proj|c_attn|c_fc|query_key_value"
    r"|dense_(?:h_to_4h|4h_to_h)|fc[12]|w[123])\b"
)


def parsed(notes: str) -> dict[str, Any]:
    """The notes as keys and values; empty where they are prose."""
    if notes.lstrip().startswith("{"):
        try:
            found = json.loads(notes)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
    pairs = (piece.partition("=") for piece in notes.split(";") if "=" in piece)
    return {key.strip(): value.strip() for key, _, value in pairs}


def lora_targets(notes: str, said: dict[str, Any]) -> tuple[str, ...] | None:
    """The layers that LoRA adapts; None: not said."""
    given = said.get("target_modules")
    if isinstance(given, list) and given:
        return tuple(str(name) for name in given)
    if isinstance(given, str) and given:
        if "all" in given:
            return ("all-linear",)
        return tuple(name.strip() for name in given.split(","))
    if re.search(r"target\w*\s*=\s*all|all[- ]linear|all layers|all linear", notes, re.IGNORECASE):
        return ("all-linear",)
    switched = [
        name
        for key, name in PROJECTIONS.items()
        if re.search(rf"'?{key}'?\s*[:=]\s*true", notes, re.IGNORECASE)
    ]
    if switched:
        return tuple(
            dict.fromkeys(one for name in switched for one in (MLP if name == "mlp" else (name,)))
        )
    if re.search(r"(?:^|\W)q\s*,\s*v(?:\W|$)", notes):
        return ("q_proj", "v_proj")
    return tuple(dict.fromkeys(_NAMES.findall(notes))) or None


def modules_to_save(notes: str) -> tuple[str, ...]:
    """What is trained in full beside adapters."""
    found = re.search(r"modules_to_save\s*[=:]\s*\[?([\w', .\"]+)", notes)
    names: list[str] = re.findall(r"\w+", found[1]) if found else []
    return tuple(dict.fromkeys(SAVED_AS.get(name, name) for name in names))


def other_adapter(said: dict[str, Any]) -> str | None:
    """The name of a way to fine-tune that is neither full training nor LoRA; None: none
    is named.
    """
    kind = said.get("peft_type", said.get("tuner"))
    if kind is None:
        section = re.search(
            r"finetuning with (?:the )?([\w ]+?) on", str(said.get("section", "")), re.IGNORECASE
        )
        kind = section[1] if section else None
    plain = str(kind or "").lower().replace(" ", "").replace("-", "")
    exp = str(said.get("exp", "")).lower()
    variant = re.search(r"galore|lisa|adalora|llamapro|lorafa|neftune", plain + exp)
    if plain in ("", "lora", "qlora", "full", "none") and not variant:
        return None
    return str(variant[0] if variant and plain in ("lora", "full") else kind)


def dora(said: dict[str, Any]) -> bool:
    """Whether the adapters have a magnitude besides."""
    return "dora" in str(said.get("exp", "")).lower()


def trainable(said: dict[str, Any]) -> int | None:
    """Parameters that are trained."""
    value = said.get("trainable")
    try:
        return int(value) if value is not None else None
    except ValueError:
        return None


def names_lora(notes: str) -> str:
    """``lora`` or ``qlora`` where the notes name a configuration of it (``.../qlora.yaml``); empty
    elsewhere.
    """
    found = re.search(r"(?:^|[/=_ -])(q?lora)(?:\.ya?ml|\.json|_finetune)", notes.lower())
    return found[1] if found else ""


def length_varies(notes: str) -> bool:
    """Whether sequences are as long as the data makes them, so that the stated length is no more
    than a limit.
    """
    return bool(re.search(r"\bunpacked\b(?!\?)|not packed", notes.lower()))


def lengths(notes: str) -> str:
    """``varied`` where texts are cut at a length, not brought to it; empty: not said."""
    return "varied" if re.search(r"truncated at max_length|variable length", notes) else ""


def allocator(notes: str) -> str:
    """``PYTORCH_CUDA_ALLOC_CONF`` where the notes give it; empty elsewhere."""
    found = re.search(r"ALLOC_CONF\s*[=:]\s*[\"']?([a-z_]+:[\w.:,\[\]]+)", notes)
    return found[1].rstrip(".,") if found else ""
