"""LoRA adapters (Hu et al. 2021) by peft, where it is found."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import nn

from .build import quiet


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
