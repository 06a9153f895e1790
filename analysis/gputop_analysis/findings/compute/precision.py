"""Compute efficiency: numbers wider than the work needs, or a narrow format that needs a crutch."""

from __future__ import annotations

from gputop_agent.contracts import Hello
from gputop_analysis.findings.advice import Option
from gputop_analysis.findings.compute.device_samples import Samples, samples
from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU, H200
from gputop_analysis.findings.pictures import UTILISATION
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody, on_device
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

AMPERE = 8.0
"""Compute capability of TF32 and bfloat16 (CUDA C++ programming guide, appendix H)."""
SM_BUSY, TENSOR_IDLE = 70.0, 10.0
_FLOAT16 = "wrap forward and loss in torch.autocast('cuda', torch.float16), with a GradScaler"


@finding(
    id="CE01",
    name="tensor cores idle",
    family="compute",
    cause="compute",
    trigger=f"multiprocessors active above {SM_BUSY:g} % of the time and tensor cores below "
    f"{TENSOR_IDLE:g} %",
    fix="train under torch.autocast('cuda', torch.bfloat16)",
    explains=("CE02",),
    no_use="without a GPU of the run; autocast: where it is on",
    reads="gpu.sm_active_pct, tensor_active_pct (GPM counters, Hopper and later)",
    silent="no GPM counters",
    traps="work that needs fp32 or fp64",
    pictures=(UTILISATION,),
)
def tensor_cores_idle(view: RunView, spec: Spec) -> Finding | None:
    """The GPU computes, but not with the units that have most of its speed."""
    gpu_samples = _typical(view)
    if gpu_samples:
        busy, tensor = (gpu_samples.mean("sm_active_pct"), gpu_samples.mean("tensor_active_pct"))
    else:
        busy, tensor = (None, None)
    if (
        gpu_samples is None
        or busy is None
        or tensor is None
        or busy <= SM_BUSY
        or tensor >= TENSOR_IDLE
    ):
        return None
    hello, run = view.hello(gpu_samples.rank), Facts(view, gpu_samples.rank)
    amp = bool((hello.get("amp") or {}).get("autocast"))
    if amp:
        fix = (
            "most time goes to work that is no matrix product: see CE05, and torch.profiler for "
            "the largest kernels"
        )
    elif _capability(hello) >= AMPERE:
        fix = (
            "forward and loss in bfloat16: "
            f"{phrase(run, 'autocast', device='cuda', dtype='bfloat16', short='bf16')}"
        )
    else:
        fix = Option(_FLOAT16, assumes=False)
    return spec.make(
        severity="medium" if not amp and _all_float32(hello) else "info",
        title=f"tensor cores are active {tensor:.0f} % of the time while the GPU computes "
        f"{busy:.0f} % of it",
        evidence=f"GPU {gpu_samples.gpu}: SM active {busy:.0f} %, tensor cores {tensor:.0f} % over "
        f"{len(gpu_samples.rows)} samples; autocast {'on' if amp else 'off'}, parameters "
        f"{', '.join(_dtypes(hello)) or 'of a type not told'}",
        fix=fix,
        rank=everybody(view),
        gpu=gpu_samples.gpu if len(view.ranks) == 1 else None,
        confidence=0.8,
        proof=Proof(
            statistic="tensor cores active",
            value=tensor,
            threshold=TENSOR_IDLE,
            unit="%",
            formula="no time is claimed: how much is matrix products shows when it runs in a "
            "narrower type",
            inputs=(
                gpu_samples.input("multiprocessors active", "sm_active_pct"),
                gpu_samples.input("tensor cores active", "tensor_active_pct"),
            ),
        ),
    )


@finding(
    id="CE02",
    name="TF32 off",
    family="compute",
    cause="compute",
    trigger="float32 parameters without autocast on a GPU from Ampere on, matrix products at "
    "highest precision",
    fix="torch.set_float32_matmul_precision('high')",
    no_use=(
        "without a GPU of the run, or one before Ampere; where all 23 bits of "
        "the mantissa are needed"
    ),
    reads="hello.flags of matmul precision, hello.device_capability, dtypes of the parameters",
    silent="older than Ampere; no fp32 matrix products",
    traps="results that need the last bits",
    seen_on=H200,
)
def tf32_off(view: RunView, spec: Spec) -> Finding | None:
    """Float32 matrix products stay off the tensor cores."""
    rank = next(iter(view.ranks), None)
    if rank is None or not on_device(view, rank):
        return None
    hello = view.hello(rank)
    if not _has_tf32(hello) or not _multiplies_float32(hello):
        return None
    gpu_samples, run = samples(view, rank), Facts(view, rank)
    tensor = gpu_samples.mean("tensor_active_pct") if gpu_samples else None
    if tensor is not None and tensor >= TENSOR_IDLE:
        return None
    return spec.make(
        severity="medium",
        title="matrix products run in full float32, past the tensor cores",
        evidence=f"{hello.get('device_name') or 'the GPU'} has compute capability "
        f"{hello.get('device_capability')}; parameters float32, no autocast, "
        "torch.get_float32_matmul_precision() is 'highest', allow_tf32 off",
        fix=(
            "torch.set_float32_matmul_precision('high') before training: products are rounded to "
            "10 bits of mantissa and run up to 8 times as fast",
            f"or {phrase(run, 'autocast', device='cuda', dtype='bfloat16', short='bf16')}",
        ),
        rank=everybody(view),
        confidence=0.8,
        proof=Proof(
            statistic="float32 parameters on tensor cores that may not use TF32",
            value=_capability(hello),
            threshold=AMPERE,
            unit="compute capability",
            formula="no time is claimed: what is won depends on how much of the work is matrix "
            "products",
            inputs=(
                Input("matmul precision", "highest", "", "hello.flags.matmul_precision"),
                Input("autocast", "off", "", "hello.amp.autocast"),
                Input("parameters", ", ".join(_dtypes(hello)), "", "hello.model.by_dtype"),
            ),
        ),
    )


@finding(
    id="CE03",
    name="fp16 with a scaler on bf16 hardware",
    family="compute",
    cause="compute",
    trigger="a GradScaler in use with float16 on hardware that computes in bfloat16 as fast "
    "(Ampere and later, or a CPU)",
    fix="torch.autocast(..., torch.bfloat16) without GradScaler",
    no_use="on a GPU without bfloat16 (before Ampere)",
    reads="hello.amp.grad_scaler and dtype, hello.device_capability",
    silent="hardware without bfloat16",
    traps="kernels that exist in float16 only",
    seen_on=CPU,
)
def float16_with_scaler(view: RunView, spec: Spec) -> Finding | None:
    """bfloat16 has float32's range: no scaling, no skipped steps, no search for the scale."""
    rank = next(iter(view.ranks), None)
    hello = view.hello(rank)
    amp, cuda = hello.get("amp") or {}, rank is not None and on_device(view, rank)
    if (
        rank is None
        or not amp.get("grad_scaler")
        or amp.get("dtype") not in ("float16", None if cuda else "float16")
    ):
        return None
    if cuda and _capability(hello) < AMPERE:
        return None
    where = "a CPU"
    if cuda:
        where = f"compute capability {hello.get('device_capability')}"
    device, run = "cuda" if cuda else "cpu", Facts(view, rank)
    return spec.make(
        severity="medium",
        title="float16 with a GradScaler, where bfloat16 needs none",
        evidence=f"GradScaler is in use, autocast to {amp.get('dtype') or 'float16'}, on {where}, "
        "which computes in bfloat16 too",
        fix=phrase(run, "autocast", device=device, dtype="bfloat16", short="bf16")
        + ("" if run.trainer else ", and remove GradScaler: loss.backward(); optimizer.step()"),
        rank=everybody(view),
        confidence=0.9 if amp.get("dtype") else 0.7,
        proof=Proof(
            statistic="a GradScaler in use on hardware with bfloat16",
            value=1,
            threshold=0,
            unit="",
            formula="no time is claimed: the scaler itself is cheap; what it costs are "
            "skipped steps and overflows",
            inputs=(
                Input("GradScaler", "in use", "", "hello.amp.grad_scaler"),
                Input("autocast", str(amp.get("dtype")), "", "hello.amp.dtype"),
                Input("hardware", where, "", "hello.device_capability"),
            ),
        ),
    )


def _typical(view: RunView) -> Samples | None:
    """The device of lower-median multiprocessor activity; None unless all were sampled."""
    all_samples = [gpu for rank in view.ranks if (gpu := samples(view, rank))]
    by_activity = sorted(
        (value, i)
        for i, gpu in enumerate(all_samples)
        if (value := gpu.mean("sm_active_pct")) is not None
    )
    if by_activity and len(by_activity) == len(view.ranks):
        return all_samples[by_activity[(len(by_activity) - 1) // 2][1]]
    return None


def _capability(hello: Hello) -> float:
    """As a number; 0 where it is not known."""
    try:
        return float(hello.get("device_capability") or 0)
    except ValueError:
        return 0.0


def _dtypes(hello: Hello) -> list[str]:
    return list((hello.get("model") or {}).get("by_dtype") or {})


def _has_tf32(hello: Hello) -> bool:
    """Whether the GPU has tensor cores for it."""
    return _capability(hello) >= AMPERE and not hello.get("hip_version")


def _multiplies_float32(hello: Hello) -> bool:
    """Whether matrix products are of float32 and stay so, unless somebody wants it exact."""
    if (hello.get("amp") or {}).get("autocast") or not _all_float32(hello):
        return False
    flags = hello.get("flags") or {}
    if flags.get("matmul_precision") != "highest" or flags.get("cuda_matmul_tf32"):
        return False
    is_chosen = flags.get("deterministic") or (hello.get("env") or {}).get("NVIDIA_TF32_OVERRIDE")
    return not is_chosen


def _all_float32(hello: Hello) -> bool:
    return _dtypes(hello) == ["float32"]
