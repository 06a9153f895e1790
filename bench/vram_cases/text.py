"""Free text of a published measurement, read into the words of a setup.

Each reader takes one cell as its source wrote it and answers with the words of ``vram.setup``, or
None where the text says nothing that is known. None of them knows a source: they look for the words
that people use.
"""

from __future__ import annotations

import re

NUMBER = re.compile(r"\d+(?:\.\d+)?")
EMPTY = ("", "nan", "none", "null", "n/a", "na", "?", "-", "unknown")
DRIVER = (
    r"nvidia-?smi|nvml|device|driver|rocm-smi|dcgm|wandb|\bvram\b"
    r"|(?:gpu|video) memory (?:usage|used|occupied|util)"
)
"""Words for what the driver shows of a GPU."""
OFF = ("no", "none", "false", "off", "0", "disabled", "no_shard")


def blank(text: str) -> bool:
    """Whether a cell says nothing."""
    return text.strip().lower() in EMPTY


def count(text: str) -> int | None:
    """The whole number that a cell begins with: ``4``, ``4.0``, ``8,192``, ``32k`` (of 1024); else
    the only one that it holds: ``r=16``, ``per device 4``, ``x8``.
    """
    plain = text.replace(",", "")
    if thousands := re.match(r"\s*(\d+(?:\.\d+)?) ?[kK]\b", plain):
        return int(float(thousands[1]) * 1024)
    if found := re.match(r"\s*(\d+)(?:\.0*)?(?![\d.])", plain):
        return int(found[1])
    numbers = re.findall(r"[-+\d.]*\d", plain)
    only = re.search(r"(?:[=:(\s]|\bx)(\d+)(?![\d.])", plain) if len(numbers) == 1 else None
    return int(only[1]) if only else None


def parameters(text: str) -> int | None:
    """A number of parameters: ``7241732096``, ``7.24B``, ``350M``, ``1.3e9``."""
    found = re.match(r"\s*(\d+(?:\.\d+)?(?:e\+?\d+)?) ?([bBmM]?)", text.replace(",", ""))
    return int(float(found[1]) * {"b": 1e9, "m": 1e6, "": 1}[found[2].lower()]) if found else None


def off(text: str) -> bool:
    """Whether a cell switches something off."""
    word = re.split(r"[\s(,;:]", text.strip().lower())[0].rstrip("?")
    return word in OFF


def compute_dtype(text: str) -> str | None:
    """Of the computation: what autocast or the stored weights are in. Flags that are not set
    (``bf16=None``) say nothing.
    """
    lower = re.sub(r"\b(?:bf16|fp16)\s*=\s*(?!true)\w+", "", re.sub(r"\(.*?\)", "", text.lower()))
    for pattern, dtype in (
        (r"\bfp8|float8|e4m3", "fp8"),
        (r"\bbf16|bfloat16", "bf16"),
        (r"\bfp16|float16|\bhalf\b|\b16-bit", "fp16"),
        (r"\bfp32|float32|\b32-bit|\btf32", "fp32"),
    ):
        if re.search(pattern, lower):
            return dtype
    return None


def autocast(text: str) -> bool:
    """Whether the text speaks of mixed precision (AMP) that is on: flags that are not set do not
    count.
    """
    lower = text.lower()
    if re.search(r"\b(?:bf16|fp16)\s*=", lower):
        return bool(re.search(r"\b(?:bf16|fp16)\s*=\s*true", lower))
    return bool(re.search(r"\bmixed|\bamp\b|autocast", lower)) and "-true" not in lower


def stored_dtype(text: str) -> str | None:
    """Of the weights in memory, where the text names it apart (``torch_dtype=``, ``-true``,
    ``-mixed``); None: not said.
    """
    lower = text.lower()
    if named := re.search(
        r"(?:torch_dtype|model_dtype|param_dtype|dtype)\s*[=:]?\s*(?:auto->)?\s*(\w+)", lower
    ):
        return compute_dtype(named[1])
    if true := re.search(r"(\w+)-true", lower):
        return compute_dtype(true[1])
    return "fp32" if re.search(r"\bmixed|\bamp\b", lower) else None


def adapter_dtype(text: str) -> str | None:
    """Of the adapters, where the text says it: ``bfloat16; adapter autocast fp32``."""
    found = re.search(
        r"(?:adapter|lora)[^;,]*?(fp32|float32|bf16|bfloat16|fp16|float16)", text.lower()
    )
    return compute_dtype(found[1]) if found else None


def optimizer(text: str) -> str | None:
    """One of ``OPTIMIZERS``."""
    lower = text.lower().replace("_", "").replace("-", "").replace(" ", "")
    if re.search(r"galore|apollo|adammini|sophia|shampoo|lomo|lamb|soap", lower):
        return None
    eight, paged = bool(re.search(r"8bit|int8", lower)), "paged" in lower
    if "adamw" in lower or re.search(r"adam(?!af)", lower):
        if paged:
            return "adamw-paged-8bit" if eight else "adamw-paged"
        if eight:
            return "adamw-8bit"
        return "adamw-fused" if "fused" in lower else "adamw"
    if "lion" in lower:
        return "lion-8bit" if eight else "lion"
    if "sgd" in lower:
        return "sgd-momentum" if "momentum" in lower else "sgd"
    return next((name for name in ("adafactor", "muon", "came") if name in lower), None)


def sharding(text: str) -> str | None:
    """One of ``SHARDINGS``; None where the text names another way of spreading a model."""
    lower = text.lower().replace("_", "").replace("-", "").replace(" ", "")
    stage = re.search(r"(?:zero|stage|deepspeed|ds|zp?z)\D{0,6}([0-3])", lower)
    if "hsdp" in lower or "hybridshard" in lower:
        return "hsdp"
    if "fsdp2" in lower or "fullyshard" in lower:
        return "fsdp2"
    if re.search(
        "fsdp|fullshard|shardgradop|noshard", lower
    ):  # the names of FSDP1's strategies stand for it
        return _fsdp(lower)
    if stage:
        return ("ddp", "zero1", "zero2", "zero3")[int(stage[1])]
    if "distopt" in lower or "distributedoptimizer" in lower:
        return "zero1"
    if off(text) or blank(text):
        return "none"
    return "ddp" if "ddp" in lower or "dataparallel" in lower else None


def _fsdp(lower: str) -> str:
    if "noshard" in lower:
        return "ddp"
    return "zero2" if "shardgradop" in lower else "fsdp1"


def offload(text: str) -> str:
    """``none``, ``optimizer`` or ``all``."""
    lower = text.lower()
    if "offload" not in lower:
        return "none"
    return "all" if "fsdp" in lower or "param" in lower else "optimizer"


def checkpointing(text: str, gpus: int) -> str | None:
    """``none``, ``selective`` or ``full``; a text may say it by the number of GPUs (``none on 1
    GPU; with FSDP full``).
    """
    clauses = [
        clause for clause in re.split(r"[;,](?![^\[]*\])", text.lower()) if _applies(clause, gpus)
    ]
    for clause in clauses:
        if (found := _checkpointing(clause.strip())) is not None:
            return found
    return None


def _applies(clause: str, gpus: int) -> bool:
    one = re.search(r"\b(?:1|one|single)[ -]gpu", clause)
    several = re.search(r"multi[- ]?gpu|several gpus|\bwith fsdp|\bwith deepspeed|\d+ gpus", clause)
    return gpus > 1 if several and not one else gpus == 1 if one and not several else True


def _checkpointing(clause: str) -> str | None:
    if re.match(r"(?:none|no|off|false|0|disabled)\b", clause):
        return "none"
    if "selective" in clause or "sac" in clause.split() or "op ac" in clause:
        return "selective"
    if re.search(
        r"full|checkpoint|ckpt|recompute|\byes\b|\btrue\b|\bon\b|^1$|uniform|block", clause
    ):
        return "full"
    return None


def transformers_version(text: str) -> str:
    """As in ``transformers 5.13.1`` or ``tf4.48.1``; empty where it is not said."""
    found = re.search(r"(?:transformers|\btf)[ =v]*(\d+\.\d+(?:\.\d+)?)", text.lower())
    return found[1] if found else ""


def offloads_activations(text: str) -> bool:
    """Whether kept activations go to the host."""
    return "offload" in text.lower()


def attention(text: str) -> str | None:
    """``eager``, ``sdpa`` or ``flash``."""
    lower = text.lower()
    if off(text) or "eager" in lower or "unfused" in lower:
        return None if blank(text) else "eager"
    if "sdpa" in lower or "flex" in lower or "math" in lower:
        return "sdpa"
    return "flash" if re.search(r"flash|fa[23]|xformers|fused|te-|^yes|^true|^1$", lower) else None


def loss(text: str) -> str | None:
    """One of ``LOSSES``, or ``kernel`` for a fused kernel on whole logits."""
    lower = text.lower()
    if off(text) or blank(text):
        return "plain"
    if "chunk" in lower:
        return "chunked"
    if re.search(r"linear|liger|flce|cut[- ]?cross|\bcce\b", lower):
        return "fused"
    return (
        "kernel"
        if re.search(r"triton|kernel|fused|unsloth|inplace|in-place|yes|true|^1$", lower)
        else None
    )


def quantized(text: str) -> str | None:
    """``nf4``, ``int8`` or an empty word for the frozen weights; None for what is not known."""
    lower = text.lower()
    if blank(text) or off(text) or "fp8" in lower:
        return ""
    if re.search(r"nf4|fp4|4[- ]?bit|int4|qlora|awq|hqq", lower):
        return "nf4"
    return "int8" if re.search(r"8[- ]?bit|int8", lower) else None


def metric(text: str) -> str | None:
    """What was measured: ``allocated``, ``reserved`` or ``device`` (the driver's view); None: the
    text does not say.
    """
    lower = text.lower()
    if re.search(r"reserved|cached", lower) and not re.search(r"allocated.*not reserved", lower):
        return "reserved"
    if re.search(r"alloc|active", lower):
        return "allocated"
    return "device" if re.search(DRIVER, lower) else None


def failed(oom: str, measured: str) -> bool | None:
    """Whether a run failed for memory, by its own column or by what stands where its memory should;
    None: it is not said.
    """
    lower, said = oom.strip().lower(), f"{oom}; {measured}".lower()
    if count(lower) == 0 or re.match(r"(?:false|no|not|ok|fits|without)\b", lower):
        return False
    if (
        count(lower) == 1
        or lower in ("true", "yes", "failed")
        or re.search(r"\boom\b|out of memory", said)
    ):
        return True
    return None
