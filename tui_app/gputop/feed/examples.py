"""Setups to start from, as people train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gputop_analysis.vram.setup import Setup

FIRST = 1
"""Index of the example that is shown first."""


class Example(NamedTuple):
    """A title, a model of the catalog and what differs from the defaults."""

    title: str
    model: str
    values: dict[str, Any]


EXAMPLES = (
    Example(
        "QLoRA of a 7B model",
        "mistral-7b-v0.1",
        {"lora_rank": 16, "lora_targets": "all-linear", "quant": "nf4", "seq": 4096},
    ),
    Example(
        "LoRA of an 8B model",
        "llama-3.1-8b",
        {"lora_rank": 16, "lora_targets": "all-linear", "seq": 4096, "checkpointing": "full"},
    ),
    Example(
        "Full fine-tuning of a 1.5B model",
        "qwen2.5-1.5b",
        {"seq": 4096, "micro_batch": 2, "checkpointing": "full"},
    ),
    Example(
        "Full fine-tuning of an 8B model, FSDP x 8",
        "llama-3.1-8b",
        {
            "seq": 8192,
            "sharding": "fsdp2",
            "dp": 8,
            "checkpointing": "full",
            "weights": "fp32",
            "recipe": "torchtitan",
        },
    ),
    Example(
        "Full fine-tuning of a 7B model, ZeRO-3 x 8",
        "qwen2.5-7b",
        {
            "seq": 4096,
            "sharding": "zero3",
            "dp": 8,
            "checkpointing": "full",
            "recipe": "deepspeed",
            "master_weights": True,
        },
    ),
    Example(
        "QLoRA of a 70B model",
        "llama-3.1-70b",
        {"lora_rank": 16, "quant": "nf4", "seq": 2048, "checkpointing": "full"},
    ),
    Example(
        "Pre-training of a small GPT",
        "gpt2",
        {"seq": 1024, "micro_batch": 16, "weights": "fp32", "recipe": "plain"},
    ),
    Example(
        "LoRA of a model that sees",
        "qwen2.5-vl-7b",
        {"lora_rank": 16, "images": 1, "image_size": 672, "checkpointing": "full"},
    ),
    Example(
        "70B with tensor and pipeline parallelism",
        "llama-3.1-70b",
        {
            "seq": 8192,
            "tp": 8,
            "pp": 4,
            "dp": 2,
            "sequence_parallel": True,
            "sharding": "zero1",
            "recipe": "megatron",
        },
    ),
)


def first_setup() -> Setup:
    """What is shown before anything is chosen."""
    from gputop.api import shape_of
    from gputop_analysis.vram.options import setup_of

    return setup_of(shape_of(EXAMPLES[FIRST].model), EXAMPLES[FIRST].values)
