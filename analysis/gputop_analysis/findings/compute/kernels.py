"""Compute efficiency: the model's FLOPs against the peak, and kernels that have a faster form."""

from __future__ import annotations

from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.flops import efficiency
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

LOW_MFU = 0.30
MATH_SHARE = 0.10


@finding(
    id="CE12",
    name="low MFU",
    family="compute",
    cause="compute",
    trigger=f"model FLOPs below {percent(LOW_MFU)} of what the GPUs could do in the same time, "
    "where FLOPs and peak are known",
    fix="the largest line of the efficiency budget says where the rest goes",
    no_use="for models whose work is not matrix products",
    reads="floating-point operations per step, the GPU's dense peak, step time",
    silent="operations or peak not known; no GPU",
    traps="mixture of experts and sparse models",
)
def low_mfu(view: RunView, spec: Spec) -> Finding | None:
    """Not a fault in itself: the sum of all others."""
    efficiencies = list(filter(None, (efficiency(view, rank) for rank in view.ranks)))
    if not efficiencies or len(efficiencies) < len(view.ranks):
        return None
    by_mfu = sorted(efficiencies, key=lambda rank_efficiency: rank_efficiency.mfu)
    rank_efficiency = by_mfu[(len(by_mfu) - 1) // 2]
    if rank_efficiency.mfu >= LOW_MFU:
        return None
    return spec.make(
        severity="info",
        title=f"{rank_efficiency.mfu * 100:.0f} % of the GPU's peak is used for the model (MFU)",
        evidence=f"{rank_efficiency.model_flops_per_step:.3g} model FLOPs a step on "
        f"{rank_efficiency.gpu}, peak {rank_efficiency.peak_flops / 1e12:,.0f} TFLOP/s dense "
        f"{rank_efficiency.precision}; HFU {rank_efficiency.hfu * 100:.0f} %",
        fix="see the efficiency budget (gputop report): its largest line below useful "
        "compute is what to mend first",
        rank=everybody(view),
        confidence=0.8,
        proof=Proof(
            statistic="model FLOPs / (peak x wall time)",
            value=100 * rank_efficiency.mfu,
            threshold=100 * LOW_MFU,
            unit="%",
            formula="MFU = model FLOPs per step x steps / (dense peak x wall time of the steady "
            "steps) (PaLM, appendix B)",
            inputs=(
                Input(
                    "model FLOPs per step",
                    rank_efficiency.model_flops_per_step,
                    "FLOP",
                    rank_efficiency.source,
                ),
                Input(
                    "peak",
                    rank_efficiency.peak_flops / 1e12,
                    "TFLOP/s",
                    f"{rank_efficiency.gpu}, dense {rank_efficiency.precision}",
                ),
                Input("HFU", 100 * rank_efficiency.hfu, "%", "with recomputed FLOPs"),
            ),
        ),
    )


@finding(
    id="CE06",
    name="attention in the math kernel",
    family="compute",
    cause="compute",
    trigger="a profile burst shows scaled_dot_product_attention in its math form for over "
    f"{percent(MATH_SHARE)} of the device's time",
    fix="a mask and a dtype that the flash or memory-efficient kernel takes",
    no_use="where the mask or the dtype cannot be another one",
    reads="kernel names of a profiler burst or trace",
    silent="no trace",
    traps="short sequences, where it makes no difference",
)
def math_attention(view: RunView, spec: Spec) -> Finding | None:
    """The fallback writes the whole attention matrix to memory."""
    event = max(view.events("profile"), key=lambda event: event.get("t_ns", 0), default=None)
    table = (event or {}).get("table") or []
    total = sum(float(row.get("device_ms") or 0) for row in table)
    if event is None or total <= 0:
        return None
    math = [row for row in table if "scaled_dot_product_attention_math" in str(row.get("op"))]
    # a loss uses _log_softmax
    softmax = [row for row in table if str(row.get("op")) == "aten::_softmax"]
    share = sum(float(row.get("device_ms") or 0) for row in (*math, *softmax)) / total
    if not math or share <= MATH_SHARE:
        return None
    calls = int(math[0].get("calls") or 0)
    steps = max(1, int(event.get("steps") or 1))
    return spec.make(
        severity="medium",
        title=f"attention runs in the math kernel, {share * 100:.0f} % of the GPU's time at least",
        evidence=f"{calls / steps:.0f} calls a step of scaled_dot_product_attention in its math "
        f"form in a profile of {steps} steps; it and its softmax take that part of the kernels "
        "listed",
        fix="use fp16 or bf16 inputs, is_causal=True instead of a mask where it is causal, a head "
        "size of at most 256; torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) says "
        "what forbids the fast kernel",
        rank=event.get("rank") if len(view.ranks) == 1 else None,
        confidence=0.8,
        proof=Proof(
            statistic="math attention and softmax / time of all kernels listed",
            value=100 * share,
            threshold=100 * MATH_SHARE,
            unit="%",
            formula="no time is claimed: the matrix products of the math form are not "
            "told from the model's own",
            inputs=(
                Input(
                    "calls in the profile",
                    calls,
                    "",
                    "profile event, op aten::_scaled_dot_product_attention_math",
                ),
                Input(
                    "device time of all kernels listed",
                    total,
                    "ms",
                    f"profile event, {steps} steps",
                ),
            ),
        ),
    )
