"""What other tools call the values of an estimate's options.

Written with dashes and in small letters, as ``plain`` makes them. The names are those of
transformers' ``OptimizerNames``, ``attn_implementation`` and ``TrainingArguments``, of bnb,
Axolotl and torch. A value is here only where it takes the memory of the one that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Spellings = Mapping[str, str]


def _table(rows: Iterable[tuple[str, str]]) -> Spellings:
    """``(value, "its other names")`` as other name -> value."""
    return {other: value for value, others in rows for other in others.split()}


OPTIMIZERS = _table(
    (
        ("adamw", "adam adamw-torch adamw-hf adamw-32bit"),
        ("adamw-fused", "adam-fused adamw-torch-fused adamw-apex-fused fused-adam fusedadam"),
        ("adamw-8bit", "adam-8bit adamw8bit adam8bit adamw-bnb-8bit"),
        ("adamw-paged", "paged-adamw paged-adamw-32bit pagedadamw pagedadamw32bit"),
        ("adamw-paged-8bit", "paged-adamw-8bit pagedadamw8bit"),
        ("lion", "lion-32bit"),
        ("lion-8bit", "lion8bit"),
        ("galore", "galore-adamw"),
        ("galore-8bit", "galore-adamw-8bit"),
    )
)
ATTENTIONS = _table(
    (
        ("eager", "math"),
        ("sdpa", "mem-efficient memory-efficient xformers"),
        (
            "flash",
            "flash-attention flash-attention-2 flash-attention-3 flash-attn flash-attn-2 flash2 fa2"
            " fa3 flex flex-attention",
        ),
    )
)
CHECKPOINTING = _table((("full", "true yes on 1"), ("none", "false no off 0")))
LOSSES = _table((("fused", "cce cut-cross-entropy liger chunked-nll chunked-head linear-chunked"),))
DTYPES = _table(
    (("fp32", "float32 float"), ("bf16", "bfloat16"), ("fp16", "float16 half"), ("fp8", "float8"))
)
PRODUCTS = {**DTYPES, **_table((("fp8", "mxfp8 mx-fp8"), ("fp4", "nvfp4 mxfp4 nv-fp4")))}
"""Of products alone, whose scales of blocks take next to no time."""
QUANTIZED = _table(
    (("nf4", "gptq awq fp4 int4 4bit 4-bit bnb-4bit"), ("int8", "8bit 8-bit bnb-8bit llm.int8"))
)
"""GPTQ and AWQ take 4.16 bits a weight with a scale and a zero point for 128, nf4 takes 4.13."""
SHARDINGS = _table(
    (
        ("fsdp2", "fsdp"),
        ("zero1", "zero-1 stage1 stage-1"),
        ("zero2", "zero-2 stage2 stage-2"),
        ("zero3", "zero-3 stage3 stage-3"),
    )
)


def plain(value: str) -> str:
    """A value as the tables write it."""
    return value.strip().lower().replace("_", "-")
