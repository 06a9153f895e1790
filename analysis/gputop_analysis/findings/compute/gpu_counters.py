"""Compute efficiency: what the GPU's own counters say of the kernels."""

from __future__ import annotations

from gputop_analysis.findings.advice import WRITTEN_OUT, MovedSetting, Option
from gputop_analysis.findings.compute.device_samples import Samples, samples
from gputop_analysis.findings.dialect import loader_change, phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import H200
from gputop_analysis.findings.pictures import device_columns
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import counted, percent
from gputop_analysis.view import RunView

LOW_OCCUPANCY, FREE_MEMORY = 30.0, 0.40
FILLED = 0.50
"""Of the SMs, while a kernel runs. Occupancy alone says little: matrix products that reach their
peak have one of 20 to 25 % (H200).
"""
DRAM_BUSY, TENSOR_LOW = 70.0, 20.0


def _everywhere(view: RunView) -> list[Samples]:
    """The samples of all ranks' devices; empty unless every rank's was sampled."""
    all_samples = [gpu for rank in view.ranks if (gpu := samples(view, rank))]
    return all_samples if len(all_samples) == len(view.ranks) else []


@finding(
    id="CE04",
    name="batch too small",
    family="compute",
    cause="compute",
    trigger=f"kernels use less than {percent(FILLED)} of the SMs, SM occupancy below "
    f"{LOW_OCCUPANCY:g} % and over {percent(FREE_MEMORY)} of the memory free at the peak, on every "
    "GPU",
    fix="a larger micro-batch, and fewer accumulation steps for the same global batch",
    no_use="without a GPU of the run; where the batch is limited by convergence",
    reads="gpu.sm_active_pct against util_pct, sm_occupancy_pct (GPM counters, Hopper and later), "
    "memory_used_bytes",
    silent="no GPM counters",
    traps="a batch that convergence keeps small",
    seen_on=H200,
)
def batch_too_small(view: RunView, spec: Spec) -> Finding | None:
    """Kernels have too few threads to hide the latency of memory, and there is room for more."""
    all_samples = _everywhere(view)
    occupancy = [gpu.mean("sm_occupancy_pct") for gpu in all_samples]
    free = [gpu.free_memory_share() for gpu in all_samples]
    occupancy_known = [value for value in occupancy if value is not None]
    free_known = [value for value in free if value is not None]
    if not all_samples or None in occupancy or None in free:
        return None
    highest, least_free = max(occupancy_known), min(free_known)
    filled = max(gpu.filled_share() for gpu in all_samples)
    if highest >= LOW_OCCUPANCY or filled >= FILLED or least_free <= FREE_MEMORY:
        return None
    gpu = all_samples[occupancy.index(highest)]
    size = (view.hello(gpu.rank).get("dataloader") or {}).get("batch_size")
    accumulated = _micro_batches(view, gpu.rank)
    batch = f"; batch_size={size}" if size else ""
    return spec.make(
        severity="medium",
        title=f"the batch is small for this GPU: occupancy {highest:.0f} %, "
        f"{least_free * 100:.0f} % of the memory free",
        evidence=f"kernels use {100 * filled:.0f} % of the SMs, SM "
        f"occupancy at most {highest:.0f} % and {least_free * 100:.0f} % of the memory free at the "
        f"peak on {counted(len(all_samples), 'GPU')}{batch}; "
        f"{accumulated:.0f} micro-batches a step",
        fix=Option(
            _larger_batch(
                Facts(view, gpu.rank), size, accumulated, times=2 if least_free < 0.7 else 4
            ),
            lever=MovedSetting("batch", 1),
        ),
        rank=everybody(view),
        confidence=0.6,
        proof=Proof(
            statistic="SM occupancy on the fullest GPU",
            value=highest,
            threshold=LOW_OCCUPANCY,
            unit="%",
            formula="no time is claimed: how step time grows with the batch shows when it is tried",
            inputs=(
                gpu.input("SM occupancy", "sm_occupancy_pct"),
                Input(
                    "memory free at the peak",
                    100 * least_free,
                    "%",
                    "gpu.memory_used_bytes, judged against 40 %",
                ),
            ),
        ),
    )


def _larger_batch(run: Facts, size: object, accumulated: float, times: int) -> str:
    """The change to a micro-batch so many times as large, with what has to change beside it."""
    change = f"a {times} times larger micro-batch"
    if isinstance(size, int):
        change = loader_change(run, batch_size=size * times)
    if accumulated > 1:
        return f"{change} with {max(1, round(accumulated / times))} accumulation steps"
    return f"{change}, and the learning rate that goes with it"


def _micro_batches(view: RunView, rank: int) -> float:
    series = view.per_rank[rank]
    return float(series.rows["micro_batches"].sum()) / max(1, series.total_steps())


@finding(
    id="CE05",
    name="bound by memory bandwidth",
    family="compute",
    cause="compute",
    trigger=f"device memory active above {DRAM_BUSY:g} % of the time and tensor cores below "
    f"{TENSOR_LOW:g} %",
    fix="torch.compile fuses element-wise work; flash attention; a fused optimizer and loss",
    no_use="without a GPU of the run; what is compiled or fused already is not named again",
    reads="gpu.dram_active_pct, tensor_active_pct (GPM counters, Hopper and later)",
    silent="no GPM counters",
    traps="the optimizer's part of a step",
    pictures=(
        device_columns(
            ("dram_active_pct", "DRAM", "%"), ("tensor_active_pct", "tensor cores", "%")
        ),
    ),
)
def bandwidth_bound(view: RunView, spec: Spec) -> Finding | None:
    """Kernels move data most of the time and compute little with it."""
    all_samples = _everywhere(view)
    pairs = [
        (gpu.mean("dram_active_pct"), gpu.mean("tensor_active_pct"), gpu) for gpu in all_samples
    ]
    measured = [(d, t, gpu) for d, t, gpu in pairs if d is not None and t is not None]
    if not measured or len(measured) < len(all_samples):
        return None
    dram, tensor, gpu = sorted(measured, key=lambda shares: shares[0])[(len(measured) - 1) // 2]
    if dram <= DRAM_BUSY or tensor >= TENSOR_LOW:
        return None
    hello, run = view.hello(gpu.rank), Facts(view, gpu.rank)
    compiled = (hello.get("compile") or {}).get("used")
    fused = (hello.get("optimizer") or {}).get("fused")
    return spec.make(
        severity="medium",
        title=f"memory bandwidth limits the GPU: memory active {dram:.0f} %, tensor cores "
        f"{tensor:.0f} % of the time",
        evidence=f"GPU {gpu.gpu}: DRAM active {dram:.0f} %, tensor cores {tensor:.0f} % over "
        f"{len(gpu.rows)} samples; torch.compile {'on' if compiled else 'off'}, optimizer "
        f"{'fused' if fused else 'not fused'}",
        fix=(
            *([] if compiled else [f"{phrase(run, 'compile')}, which fuses element-wise work"]),
            *([] if fused else ["fused=True in the optimizer"]),
            Option(
                "scaled_dot_product_attention instead of a written-out softmax",
                needs=(WRITTEN_OUT,),
            ),
        ),
        rank=everybody(view),
        gpu=gpu.gpu if len(view.ranks) == 1 else None,
        confidence=0.7,
        proof=Proof(
            statistic="device memory active",
            value=dram,
            threshold=DRAM_BUSY,
            unit="%",
            formula="no time is claimed: what fusion saves depends on the kernels",
            inputs=(
                gpu.input("device memory active", "dram_active_pct"),
                gpu.input("tensor cores", "tensor_active_pct"),
            ),
        ),
    )
