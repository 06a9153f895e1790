"""What the frameworks do where a row does not say: whose habits a setup has."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Framework:
    """Habits of a trainer."""

    recipe: str
    adapter_dtype: str
    """peft keeps adapters in fp32 (``autocast_adapter_dtype``); others in the type of the weights,
    an empty word here.
    """
    attention: str = "sdpa"
    lora_dropout: float = 0.0
    """Of the adapters where it is not said: what the scripts of peft's users set."""
    loss: str = "plain"
    """Where none is named."""
    lora_loss: str = "plain"
    """Of LoRA fine-tuning where no loss is named."""
    kernels: bool = False
    """Whether it brings fused kernels of its own."""
    fused_optimizer: bool = False
    """Whether AdamW is the fused one by default."""
    upcasts_sharded: bool = False
    """Whether trained 16-bit weights become fp32 under FSDP with mixed precision (Accelerate)."""
    prepares_quantized: bool = False
    """Whether what is not quantised of a quantised model becomes fp32, on one GPU or replicated:
    TRL's ``SFTTrainer`` calls peft's ``prepare_model_for_kbit_training``.
    """
    stored: str = ""
    """Of the weights that are trained, where only the computation's type is said;
    empty: the same.
    """
    fsdp: str = "fsdp1"
    """Which FSDP is meant where no version of it is named."""
    checkpointing: str = "none"
    """Where nothing is said of it."""
    offloads_activations: bool = False
    """Whether that checkpointing keeps its inputs on the host."""
    compiles_loss: bool = False
    """Whether ``torch.compile`` takes in the loss."""
    accumulates: bool = False
    """Whether its recipes take several micro-batches a step where no number is given."""
    unties: bool = False
    """Whether embedding and head are two tables in models that tie them."""
    bitsandbytes: str = ""
    """The release of bitsandbytes that it pins; empty: a recent one."""
    allocator: str = ""
    """``PYTORCH_CUDA_ALLOC_CONF`` that its launch script sets."""


HUGGING_FACE = Framework("transformers", "fp32", lora_dropout=0.05, upcasts_sharded=True)
LITGPT = Framework(
    "litgpt",
    "",
    lora_dropout=0.05,
    lora_loss="chunked",
    accumulates=True,
    unties=True,
    bitsandbytes="0.41",
)
"""Its ``requirements-all.txt`` pins bitsandbytes 0.41.0 for the releases whose tables there are;
its recipes have a ``batch_size`` of many micro-batches, its ``GPT`` a head of its own.
"""
LLAMA_FACTORY = replace(HUGGING_FACE, checkpointing="full")
"""``disable_gradient_checkpointing`` is False (its ``hparams/model_args.py``)."""
UNSLOTH = Framework(
    "unsloth", "fp32", "flash", kernels=True, checkpointing="full", offloads_activations=True
)
"""``use_gradient_checkpointing = "unsloth"``, as its notebooks have it."""
TORCHTITAN = Framework(
    "torchtitan",
    "",
    fused_optimizer=True,
    stored="fp32",
    fsdp="fsdp2",
    compiles_loss=True,
    allocator="expandable_segments:True",
)
"""``training.dtype`` is float32 and ``mixed_precision_param`` bfloat16 (its ``config``); the
allocator's option is in its ``run_train.sh``.
"""
TORCHTUNE = Framework("torchtitan", "", fused_optimizer=True, loss="chunked", lora_loss="chunked")
"""Its recipes have ``CEWithChunkedOutputLoss`` from release 0.3 on."""
KNOWN = (
    ("auto-?model", Framework("transformers", "", fsdp="fsdp2")),
    ("nanotron", Framework("nanotron", "", "flash", fused_optimizer=True)),
    ("megatron|nemo|neox|simumax|vtrain", Framework("megatron", "", "flash")),
    ("titan", TORCHTITAN),
    ("litgpt|lit-gpt|lit_gpt", LITGPT),
    ("torchtune", TORCHTUNE),
    ("unsloth", UNSLOTH),
    ("deepspeed|colossal", Framework("deepspeed", "")),
    ("trl", replace(HUGGING_FACE, prepares_quantized=True)),
    ("factory", LLAMA_FACTORY),
    ("transformers|hf|peft|swift|axolotl|accelerate|hugging", HUGGING_FACE),
)


def framework(name: str) -> Framework:
    """The habits of what calls itself so; plain PyTorch's for the unknown."""
    found = (habits for words, habits in KNOWN if re.search(words, name.lower()))
    return next(found, Framework("plain", ""))
