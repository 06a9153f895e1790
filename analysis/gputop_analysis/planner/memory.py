"""Bytes on the fullest GPU of every configuration, by the formula tier of the VRAM estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gputop_analysis.catalog.params import layer_params
from gputop_analysis.parallelism.split import RECOMPUTES, sharding
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Floats, Layouts
from gputop_analysis.planner.pipeline import balanced_ends
from gputop_analysis.units import GIB
from gputop_analysis.vram.formula import peak_sizes
from gputop_analysis.vram.overhead import CONTEXT, NCCL_FIRST, NCCL_MOST, NCCL_NEXT
from gputop_analysis.vram.setup import Lora, Setup

CONTEXT_BYTES = 1.0 * GIB
"""CUDA context and NCCL's buffers, which the allocator does not see."""
HEADROOM = 0.15
"""Share of the memory above which a configuration is tight. Runs of frameworks whose buffers the
formulas know in part take 9 to 15 % more than estimated in the median, and an allocator that has to
release and ask again at each micro-batch slows a step several times (the Playbook's runs that peak
above 71 of 80 GiB: 3 to 10 times, 1.2 s a micro-batch).
"""
MAY_FIT = 1.13
"""Estimate over memory up to which a run may still fit: nine of ten published runs are within 13 %
of the formula's device total (docs/accuracy.md).
"""
COUNTS = ("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch", "replicas")
FRAGMENTATION = 1.05
"""Reserved over allocated, as the formula tier has it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on the fullest rank of each configuration."""

    allocated: Floats
    """PyTorch's ``max_memory_allocated``."""
    device: Floats
    """What the driver sees where memory is plenty."""
    least: Floats
    """What the driver sees where the allocator gives its cache back as often as it can."""


def allocated_bytes(job: Job, layouts: Layouts) -> Floats:
    """Peak of allocated bytes on the fullest rank (PyTorch's ``max_memory_allocated``)."""
    return sizes(job, layouts).allocated


def sizes(job: Job, layouts: Layouts, factor: float = 1.0) -> Sizes:
    """As in ``gputop estimate``'s formula; ``factor`` is measured over estimated memory."""
    rank_bytes = np.zeros((3, len(layouts)))
    # nothing is split over one rank: one kind less to ask for
    apart = layouts.sequence_parallel | (layouts.tp == 1)
    kinds = (layouts.zero * len(RECOMPUTES) + layouts.recompute) * 2 + apart
    for setup_kind in np.unique(kinds).tolist():
        indices = np.flatnonzero(kinds == setup_kind)
        zero, recompute = divmod(setup_kind // 2, len(RECOMPUTES))
        setup = _setup(job, zero, RECOMPUTES[recompute], sequence_parallel=bool(setup_kind % 2))
        rank_bytes[:, indices] = _of_kind(job, setup, layouts.take(indices))
    allocated, plenty, least_reserved = rank_bytes * factor
    besides = CONTEXT + _nccl(layouts)
    return Sizes(allocated, plenty + besides, least_reserved + besides)


def _nccl(layouts: Layouts) -> Floats:
    """NCCL's buffers by the groups of more than one rank, as an estimate counts them."""
    names = ("dp", "tp", "pp", "cp", "ep", "replicas")
    groups = sum((getattr(layouts, name) > 1).astype(int) for name in names)
    buffers = np.minimum(NCCL_FIRST + NCCL_NEXT * (groups - 1), NCCL_MOST)
    return np.where(groups > 0, buffers, 0)


def reserved_bytes(allocated: Floats) -> Floats:
    """About what the driver sees, where the configuration is not known: the allocator's reserve and
    the context.
    """
    return allocated * FRAGMENTATION + CONTEXT_BYTES


def _of_kind(job: Job, setup: Setup, layouts: Layouts) -> Floats:
    counts = {name: getattr(layouts, name).astype(float) for name in COUNTS}
    counts["accumulation"] = layouts.micro_batches(job.global_batch)
    ends = np.stack([0 * counts["pp"], counts["pp"] - 1])  # the first pipeline stage and the last
    if job.habits.balanced_stages:
        counts["stage_layers"] = np.maximum(
            np.stack(balanced_ends(job.model.layers, counts["pp"], _head(job))), 1
        )
    sizes = np.broadcast_arrays(*peak_sizes(setup, pipeline_stage=ends, **counts))
    return np.stack([size.max(axis=0) for size in sizes])


def _head(job: Job) -> float:
    """Weights of the head over those of a layer."""
    model = job.model
    return model.vocab * model.hidden / max(sum(layer_params(model).values()), 1)


def setup_of(job: Job, row: Mapping[str, int | bool]) -> Setup:
    """Kinds of a configuration as in ``gputop estimate``, without degrees and counts."""
    apart = bool(row["sequence_parallel"]) or int(row["tp"]) == 1
    recompute = RECOMPUTES[int(row["recompute"])]
    return _setup(job, int(row["zero"]), recompute, sequence_parallel=apart)


def setup_at(job: Job, layouts: Layouts, index: int) -> Setup:
    """One configuration whole, as ``gputop estimate`` has it: what it says of the fuller end of the
    pipeline is what ``sizes`` says.
    """
    row = layouts.row(index)
    accumulation = int(layouts.take([index]).micro_batches(job.global_batch)[0])
    return setup_of(job, row).but(
        parallel=layouts.split(index),
        micro_batch=int(row["micro_batch"]),
        accumulation=accumulation,
        sharding=_sharding(job, int(row["zero"]), int(row["replicas"])),
    )


def _sharding(job: Job, zero: int, replicas: int = 1) -> str:
    """Whose stage 3 it is: DeepSpeed's own, or FSDP2's."""
    if zero == 3 and job.recipe == "deepspeed":
        return "zero3"
    return sharding(zero, replicas)


def _setup(job: Job, zero: int, recompute: str, sequence_parallel: bool) -> Setup:
    habits = job.habits
    return Setup(
        model=job.model,
        seq=job.seq,
        dtype="fp8" if job.dtype == "fp4" else job.dtype,
        optimizer=job.optimizer,
        attention="eager" if habits.attention == "eager" else "flash",
        checkpointing=recompute,
        loss="fused" if habits.fused_loss and job.recipe != "megatron" else "plain",
        lora=job.lora or (Lora() if job.trainable_share < 1 else None),
        quantized=job.quantized,
        grad_dtype={4: "fp32", 2: "bf16"}[habits.gradient_bytes],
        master_weights=habits.master_weights,
        roles=job.roles,
        recipe=job.recipe,
        compile=habits.compiled and job.recipe != "megatron",
        transformer_engine=habits.transformer_engine,
    ).but(sharding=_sharding(job, zero), sequence_parallel=sequence_parallel)
