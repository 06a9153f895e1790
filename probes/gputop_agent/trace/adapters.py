"""LoRA adapters (Hu et al. 2021) by peft, where it is found."""

from __future__ import annotations

from typing import Any, Dict, List

import torch
from torch import nn

from . import quantized
from .build import DTYPES, compute_dtype, quiet


def adapt(model: Any, setup: Dict[str, Any], tracker: Any, notes: List[str]) -> Any:
    """Quantise and add adapters as the setup says; on the meta device."""
    lora, kind = setup.get("lora"), setup.get("quantized") or ""
    if kind:
        with torch.device("meta"):
            quantized.quantize(model, kind, compute_dtype(setup), tracker.operator)
            if lora:
                quantized.adapt(model, lora, DTYPES[lora.get("dtype") or "fp32"])
        notes.append("%s weights and their matrix products as in bitsandbytes, by hand" % kind)
        return model
    return add_lora(model, lora) if lora else model


def add_lora(model: nn.Module, lora: Dict[str, Any]) -> nn.Module:
    """The model with adapters on the layers that ``lora`` names, the rest frozen; on the meta device."""
    from peft import LoraConfig, get_peft_model

    targets = list(lora.get("targets") or ["q_proj", "v_proj"])
    config = LoraConfig(
        r=int(lora.get("rank") or 16),
        lora_alpha=16,
        lora_dropout=float(lora.get("dropout") or 0.0),
        target_modules="all-linear" if targets == ["all-linear"] else targets,
    )
    with quiet(), torch.device("meta"):
        return get_peft_model(model, config, autocast_adapter_dtype=lora.get("dtype", "fp32") == "fp32")
