"""What adapters and quantised weights move beside a layer's products, in bytes."""

from __future__ import annotations

from gputop_analysis.catalog.params import Linear, linears
from gputop_analysis.planner.job import Job
from gputop_analysis.vram.adapters import names_of, targeted
from gputop_analysis.vram.setup import Lora

FP32_FORWARD, FP32_BACKWARD = (14, 12), (22, 8)
"""For each value of an adapted layer's input and of its output, with adapters in fp32 under
autocast: casts of the input, the two products, their scaling and the sum (counted in peft 0.21's
``lora.Linear`` by what each operation reads and writes).
"""
PLAIN_FORWARD, PLAIN_BACKWARD = (2, 12), (6, 8)
"""The same without casts, as of adapters in the computation's type."""
FUSED_FORWARD, FUSED_BACKWARD = (2, 8), (6, 4)
"""The same where scaling and sum are one kernel."""
PACKED_BYTES = {"nf4": 0.5, "fp4": 0.5, "int8": 1.0}
"""Of a quantised value as it is read; two more are written, in 16 bits."""


def adapter_bytes(job: Job, moe: bool) -> tuple[float, float]:
    """Forward and backward of a layer, for each token."""
    if job.trainable_share >= 1:
        return 0.0, 0.0
    lora = job.lora or Lora()
    if lora.dtype == "fp32" and not job.habits.plain_adapters:
        forward, backward = FP32_FORWARD, FP32_BACKWARD
    elif job.habits.fused_elementwise:
        forward, backward = FUSED_FORWARD, FUSED_BACKWARD
    else:
        forward, backward = PLAIN_FORWARD, PLAIN_BACKWARD
    layer = linears(job.model, moe)
    peers = names_of(layer)
    adapted = [linear for linear in layer if targeted(linear, lora, peers)]
    inputs = sum(_passes(job, linear) * linear.inputs for linear in adapted)
    outputs = sum(_passes(job, linear) * linear.outputs for linear in adapted)
    return (
        forward[0] * inputs + forward[1] * outputs,
        backward[0] * inputs + backward[1] * outputs,
    )


def dequantised_bytes(job: Job, moe: bool) -> float:
    """Of a layer, each time that its frozen weights are made 16-bit again for a pass."""
    if not job.quantized:
        return 0.0
    values = sum(
        linear.inputs * linear.outputs * linear.copies for linear in linears(job.model, moe)
    )
    return values * (PACKED_BYTES.get(job.quantized, 0.5) + 2.0)


def _passes(job: Job, linear: Linear) -> int:
    return job.model.top_k if linear.part == "experts" else 1
