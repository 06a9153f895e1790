"""What the frameworks do where a row does not say: whose habits a setup has."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Framework:
    """Habits of a trainer."""

    recipe: str
    adapter_dtype: str
    """peft keeps adapters in fp32 (``autocast_adapter_dtype``); others in the type of the weights, an empty word
    here."""
    attention: str = "sdpa"
    lora_dropout: float = 0.0
    """Of the adapters where it is not said: what the scripts of peft's users set."""
    lora_loss: str = "plain"
    """Of LoRA fine-tuning where no loss is named."""
    kernels: bool = False
    """Whether it brings fused kernels of its own."""
    fused_optimizer: bool = False
    """Whether AdamW is the fused one by default."""
    upcasts_sharded: bool = False
    """Whether trained 16-bit weights become fp32 under FSDP with mixed precision (Accelerate)."""
    prepares_quantized: bool = False
    """Whether what is not quantised of a quantised model becomes fp32, on one GPU or replicated: TRL's ``SFTTrainer``
    calls peft's ``prepare_model_for_kbit_training``."""


HUGGING_FACE = Framework("transformers", "fp32", lora_dropout=0.05, upcasts_sharded=True)
KNOWN = (
    ("megatron|nemo|neox|simumax|vtrain", Framework("megatron", "", "flash")),
    ("titan", Framework("torchtitan", "", fused_optimizer=True)),
    ("litgpt|lit-gpt|lit_gpt", Framework("plain", "", lora_dropout=0.05, lora_loss="chunked")),
    ("torchtune", Framework("torchtitan", "", fused_optimizer=True)),
    ("unsloth", Framework("transformers", "fp32", "flash", kernels=True)),
    ("deepspeed|colossal", Framework("deepspeed", "")),
    ("trl", replace(HUGGING_FACE, prepares_quantized=True)),
    ("transformers|hf|peft|swift|axolotl|factory|accelerate|hugging", HUGGING_FACE),
)


def framework(name: str) -> Framework:
    """The habits of what calls itself so; plain PyTorch's for the unknown."""
    found = (habits for words, habits in KNOWN if re.search(words, name.lower()))
    return next(found, Framework("plain", ""))
