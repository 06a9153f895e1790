"""What a setup leaves open, as the trainer that runs it decides: dtypes of what is kept, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.vram.formula.dims import BYTES
from gputop_analysis.vram.setup import Setup


@dataclass(frozen=True, slots=True)
class Habits:
    """Bytes of a value of each kind, and what stays in memory from one step to the next."""

    weights: float
    gradients: float
    states: float
    """Of one moment of the optimizer."""
    master: float
    """0: no fp32 copy of the weights."""
    residual: float
    """Of the stream between the layers: fp32 under autocast with fp32 weights, which casts inside linear layers only."""
    flat_gradients: bool
    """Gradients live in one buffer that is never freed (Megatron's ``main_grad``, DeepSpeed's partitions)."""
    eager_norm: bool
    """Norms written out in PyTorch operations, each of which keeps its own inputs."""
    dropout: bool
    """Dropout between the parts of a layer, with a mask of one byte."""
    upcast_logits: bool
    """The loss is computed on an fp32 copy of the logits."""
    eager_rope: bool
    """Rotary embedding outside the attention kernel, in operations that keep nothing but need copies."""


def habits(setup: Setup) -> Habits:
    """Of the trainer that ``setup.recipe`` names.

    Megatron-LM: bf16 weights, gradients accumulated in fp32 (``--accumulate-allreduce-grads-in-fp32``, forced by
    ``--bf16``), fp32 master weights and moments. DeepSpeed with bf16 or fp16: the same with gradients as the weights.
    Transformers, torchtitan: whatever the weights are, with moments and gradients of the same type.
    """
    weights = BYTES[setup.weights or ("bf16" if setup.dtype in ("fp8", "int8", "nf4") else setup.dtype)]
    megatron, deepspeed = setup.recipe == "megatron", setup.recipe == "deepspeed"
    master = 4.0 if weights < 4 and (setup.master_weights or megatron or deepspeed) else 0.0
    gradients = (
        BYTES[setup.grad_dtype] if setup.grad_dtype else (4.0 if megatron and setup.dtype != "fp16" else weights)
    )
    autocast = weights == 4 and setup.dtype != "fp32"
    return Habits(
        weights=weights,
        gradients=gradients,
        states=4.0 if master else weights,
        master=master,
        residual=4.0 if autocast else BYTES[setup.dtype] if setup.dtype in ("fp32",) else 2.0,
        flat_gradients=megatron or deepspeed,
        eager_norm=setup.recipe in ("transformers", "deepspeed"),
        dropout=False,
        upcast_logits=setup.recipe in ("transformers", "deepspeed", "torchtitan"),
        eager_rope=not megatron,
    )
