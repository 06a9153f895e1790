"""Floating-point operations of the training steps, and how much of the device's peak they use.

A multiplication and an addition count as two. Model FLOPs are what forward and backward need once;
hardware FLOPs count what activation checkpointing computes again as well (Chowdhery et al. 2022,
PaLM, appendix B).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gputop_agent.contracts import Hello, Model
from gputop_analysis.catalog.gpu_names import find_gpu
from gputop_analysis.view import Array, RunView

RECOMPUTED = 4 / 3
"""Hardware over model FLOPs with full activation checkpointing: forward twice and backward, over
forward and backward (Narayanan et al. 2021, Megatron, equation 3: 96 with recomputation against 72
without).
"""


TABLE_KINDS = {"float32": "fp32", "tf32": "tf32", "float16": "fp16", "bfloat16": "bf16"}
"""The kinds of products that torch names, as the table of GPUs calls them."""


@dataclass(frozen=True, slots=True)
class UnitFlops:
    """FLOPs of one token, sample or step of one rank."""

    unit: str
    """``tokens``, ``samples`` or ``steps``."""
    model: float
    hardware: float
    source: str
    """How it was found, with its error."""


@dataclass(frozen=True, slots=True)
class FlopsUtilization:
    """FLOPs of a rank against its device's peak."""

    mfu: float
    """Model FLOPs / (peak x wall time) over the steady steps, 0 to 1."""
    hfu: float
    """The same of hardware FLOPs."""
    model_flops_per_step: float
    peak_flops: float
    """Dense peak of the device in the precision used, FLOP/s."""
    precision: str
    gpu: str
    seconds_at_peak: float
    """Time that the model FLOPs of all steps of the window would take at the peak."""
    source: str


def efficiency(view: RunView, rank: int) -> FlopsUtilization | None:
    """MFU and HFU of a rank; None without its FLOPs, its device's peak, or steady steps."""
    hello = view.hello(rank)
    gpu = find_gpu(str(hello.get("device_name") or ""))
    dtype = precision(hello)
    if gpu is not None:
        peak = gpu.dense_flops.get(TABLE_KINDS.get(dtype, ""))
    else:
        peak = None
    unit = unit_flops(view, rank) if peak is not None else None
    if gpu is None or peak is None or unit is None:
        return None
    series = view.per_rank[rank]
    if unit.unit == "steps":
        units = series.n_steps
    else:
        units = series.rows[unit.unit].astype(np.float64)
    steady_s = float(series.rows["wall_ns"][series.steady].sum()) / 1e9
    steady_units, steps = (
        float(units[series.steady].sum()),
        int(series.n_steps[series.steady].sum()),
    )
    if steady_s <= 0 or steady_units <= 0:
        return None
    return FlopsUtilization(
        mfu=unit.model * steady_units / (peak * steady_s),
        hfu=unit.hardware * steady_units / (peak * steady_s),
        model_flops_per_step=unit.model * steady_units / max(steps, 1),
        peak_flops=peak,
        precision=dtype,
        gpu=gpu.name,
        seconds_at_peak=unit.model * float(units.sum()) / peak,
        source=f"{unit.source}; {gpu.name}: {peak / 1e12:,.4g} TFLOP/s dense {dtype} "
        f"({gpu.source})",
    )


def precision(hello: Hello) -> str:
    """The type of a rank's matrix products: ``float32``, ``tf32``, ``float16`` or ``bfloat16``."""
    dtype = _fsdp_dtype(hello) or _autocast_dtype(hello) or _largest_dtype(hello)
    flags = hello.get("flags") or {}
    fast = flags.get("cuda_matmul_tf32") or flags.get("matmul_precision") in ("high", "medium")
    return "tf32" if dtype == "float32" and fast else str(dtype)


def _fsdp_dtype(hello: Hello) -> str:
    """What FSDP casts parameters to; empty where it casts none."""
    parallel = hello.get("parallel")
    sharded = parallel.get("fsdp") if isinstance(parallel, dict) else None
    mixed = sharded.get("mixed_precision") if isinstance(sharded, dict) else None
    return str((mixed or {}).get("param_dtype") or "")


def _autocast_dtype(hello: Hello) -> str | None:
    amp = hello.get("amp") or {}
    return amp.get("dtype") if amp.get("autocast") else None


def _largest_dtype(hello: Hello) -> str:
    """The type of most parameters."""
    weights = (hello.get("model") or {}).get("by_dtype") or {}
    return max(weights, key=lambda kind: weights[kind], default="float32")


def unit_flops(view: RunView, rank: int) -> UnitFlops | None:
    """FLOPs as torch counted one step (``--count-flops``), else by the shape, else None."""
    return _counted(view, rank) or _from_shape(view, rank)


def _counted(view: RunView, rank: int) -> UnitFlops | None:
    said_by = (e for e in view.record.events("flops") if e.get("rank") == rank)
    event = next(said_by, None)
    if event is None or not event.get("flops"):
        return None
    hardware = float(event["flops"])
    if view.hello(rank).get("checkpointing"):
        model = hardware / RECOMPUTED
    else:
        model = hardware
    for unit in ("tokens", "samples"):
        if event.get(unit):
            count = float(event[unit])
            break
    else:
        unit, count = "steps", 1.0
    source = f"counted by torch's FlopCounterMode in step {event.get('step')}"
    if model != hardware:
        source += "; model FLOPs are 3/4 of it, since activations are checkpointed"
    return UnitFlops(unit, model / count, hardware / count, source)


def _from_shape(view: RunView, rank: int) -> UnitFlops | None:
    """6 N per token, plus 12 L H Q T for attention of a known shape (PaLM, appendix B)."""
    hello = view.hello(rank)
    model: Model = hello.get("model") or {}
    config = model.get("config") or {}
    rows = view.per_rank[rank].rows
    if (
        not model.get("parameters")
        or not rows["tokens"].any()
        or _is_spread(hello)
        or config.get("experts")
    ):
        return None
    trainable = float(model.get("trainable") or 0)
    weights = float(model["parameters"])
    attention = 0.0
    if _ints(config, "hidden_size", "layers", "vocab_size"):
        if not config.get("tied_embeddings", True):
            # the input's embedding is a look-up, no product
            table = float(config["vocab_size"]) * config["hidden_size"]
            trainable -= table if trainable == weights else 0.0
            weights -= table
        attention = _attention_flops(config, rows)
    flops = 4.0 * weights + 2.0 * trainable + attention
    recomputed = RECOMPUTED if hello.get("checkpointing") else 1.0
    if attention:
        source = (
            "estimate: 6 N + 12 L H Q T per token (PaLM, appendix B), within 5 % of counting for "
            "GPT-2 and Llama"
        )
    else:
        source = (
            "estimate: 6 N per token, attention not counted: too low by 5 to 30 %, "
            "most at long sequences"
        )
    return UnitFlops("tokens", flops, flops * recomputed, source)


def _is_spread(hello: Hello) -> bool:
    """Whether the parameter count, or what a rank computes, may be a part of the model."""
    parallel = hello.get("parallel") or {}
    if isinstance(parallel.get("mesh"), dict):
        names = (parallel.get("mesh") or {}).get("names") or ()
    else:
        names = ()
    fsdp = parallel.get("fsdp")
    flat = bool((hello.get("model") or {}).get("sharded")) and not (
        isinstance(fsdp, dict) and fsdp.get("version") == 2
    )
    deepspeed = parallel.get("deepspeed")
    zero3 = isinstance(deepspeed, dict) and deepspeed.get("zero_stage") == 3
    return flat or zero3 or bool({"tp", "cp", "ep"} & set(names))


def _attention_flops(config: Mapping[str, Any], rows: Array) -> float:
    """Of one token: 12 L H Q T; H Q is the hidden size where the heads do not say otherwise."""
    tokens = float(rows["tokens"].sum(dtype=np.float64))
    length = tokens / max(float(rows["samples"].sum(dtype=np.float64)), 1.0)
    width = config["hidden_size"]
    if _ints(config, "heads", "head_dim"):
        width = config["heads"] * config["head_dim"]
    return 12.0 * config["layers"] * width * length


def _ints(config: Mapping[str, Any], *names: str) -> bool:
    return all(isinstance(config.get(name), int) for name in names)
