"""What a setup leaves open and its trainer decides: dtypes of what is kept, how long."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.catalog.families import traits
from gputop_analysis.vram.formula.dims import BYTES
from gputop_analysis.vram.formula.releases import release
from gputop_analysis.vram.setup import PLAIN_LOOPS, Setup

BF16_OPTIMIZER = ("none", "ddp", "zero1")
"""Shardings for which DeepSpeed's bf16 optimizer accumulates gradients in fp32."""
INSIDE_UNITS = (4, 52)
"""Transformers from which on a layer recomputes itself, inside of what FSDP1 wraps around it."""


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
    """Of the stream between layers, which none casts: fp32 under autocast and fp32 weights."""
    boundary: float
    """Of a layer's input as checkpointing keeps it."""
    casts_weights: bool
    """Autocast keeps a 16-bit copy of the weights of the linear layers for the backward pass."""
    casts_inputs: bool
    """Autocast gives each linear layer a 16-bit copy of its input."""
    flat_gradients: bool
    """Gradients live in one buffer that is never freed (Megatron's ``main_grad``, the partitions of
    ZeRO-3 in DeepSpeed's ``stage3.py``).
    """
    passing_gradients: float
    """Of a 16-bit gradient that a backward pass leaves until it is added to the fp32 one
    (nanotron's ``optim/gradient_accumulator.py``).
    """
    linear_input: float
    """Of a linear layer's input in 8 bits, as Transformer Engine's under fp8; 0: as it is."""
    frozen_boundary: float
    """Of a checkpointed layer's input with its gradient, if both stay until the backward's end."""
    waits_whole: bool
    """Under FSDP, gradients of several micro-batches wait unsharded until the last of them."""
    mixed_units: bool
    """Frozen weights have gradients, since they share FSDP1's flat parameters with adapters."""
    eager_norm: bool
    """RMSNorm written out in PyTorch operations, each of which keeps its own inputs."""


def habits(setup: Setup) -> Habits:
    """Of the trainer that ``setup.recipe`` names.

    Megatron-LM: bf16 weights, gradients accumulated in fp32
    (``--accumulate-allreduce-grads-in-fp32``, forced by ``--bf16``), fp32 master weights and
    moments. DeepSpeed with bf16 or fp16: the same, with gradients as the weights. nanotron: fp32
    gradients of all weights, whatever ZeRO-1 shards. DeepSpeed with bf16 and fp32 gradients, up to
    ZeRO-1: both at once (``bf16_optimizer.py`` sets the bf16 ones to zero and lets none go).
    Transformers, torchtitan and plain PyTorch: whatever the weights are.
    """
    weights = BYTES[
        setup.weights or (setup.dtype if setup.dtype in ("fp32", "bf16", "fp16") else "bf16")
    ]
    compute = 4.0 if setup.dtype == "fp32" else 2.0
    megatron, deepspeed, nanotron = (
        setup.recipe == name for name in ("megatron", "deepspeed", "nanotron")
    )
    if weights < 4 and (setup.master_weights or megatron or deepspeed or nanotron):
        master = 4.0
    else:
        master = 0.0
    accumulated = nanotron or (megatron and setup.dtype != "fp16")
    if setup.grad_dtype:
        gradients = BYTES[setup.grad_dtype]
    elif accumulated:
        gradients = 4.0
    else:
        gradients = weights
    twice = (
        deepspeed
        and setup.dtype == "bf16"
        and gradients > weights
        and setup.parallel.sharding in BF16_OPTIMIZER
    )
    sharded = setup.parallel.sharding in ("fsdp1", "fsdp2", "hsdp")
    casts = weights > compute and not sharded
    if _raises_stream(setup):
        residual = 4.0
    elif casts:
        residual = weights
    else:
        residual = compute
    return Habits(
        weights=weights,
        gradients=gradients + weights * twice,
        states=4.0 if master else weights,
        master=master,
        residual=residual,
        boundary=residual,
        linear_input=1.0 if megatron and setup.dtype == "fp8" else 0.0,
        frozen_boundary=_frozen_boundary(setup),
        waits_whole=_waits_whole(setup),
        mixed_units=_mixed_units(setup),
        casts_weights=casts,
        casts_inputs=casts,
        flat_gradients=megatron
        or nanotron
        or twice
        or (deepspeed and setup.parallel.sharding == "zero3"),
        passing_gradients=weights if nanotron else 0.0,
        eager_norm=setup.recipe in ("transformers", "deepspeed", *PLAIN_LOOPS)
        and not (setup.kernels or setup.compile),
    )


def _raises_stream(setup: Setup) -> bool:
    """Whether the stream between the layers is in fp32 through quantised layers: autocast runs
    ``layer_norm`` in fp32, and bitsandbytes gives its result in the type of the input (``forward``
    of ``Linear4bit``), which the last layer of an MLP adds to the stream. RMSNorm gives back the
    type that it was given.
    """
    norm = traits(setup.model.family).norm
    return bool(setup.quantized) and setup.autocast and norm.startswith("layer")


def _frozen_boundary(setup: Setup) -> float:
    """Bytes a token and hidden unit of boundary activations that FSDP1 keeps where weights are
    frozen: a layer's input and its gradient, until the backward pass is over.

    The hook that reshards frozen units (PyTorch's ``_register_post_backward_reshard_only_hook`` in
    ``distributed/fsdp/_runtime_utils.py``) holds both where the layer is recomputed from outside of
    its unit, as Transformers did until its layers recomputed themselves (``modeling_layers.py``).
    """
    frozen = setup.lora is not None or "language" in setup.freeze
    sharded = setup.parallel.sharding == "fsdp1" and setup.parallel.dp > 1
    outside = setup.recipe == "transformers" and release(setup.transformers) < INSIDE_UNITS
    if frozen and sharded and outside and setup.checkpointing == "full":
        return 4.0
    return 0.0


def _waits_whole(setup: Setup) -> bool:
    """Whether gradients of several micro-batches wait unsharded: ``no_sync`` of Accelerate and
    Fabric around all but the last.
    """
    sharded = setup.parallel.sharding in ("fsdp1", "fsdp2", "hsdp")
    return sharded and setup.recipe in ("transformers", *PLAIN_LOOPS) and not _streams(setup)


def _streams(setup: Setup) -> bool:
    return setup.optimizer_in_backward or setup.parallel.pp > 1


def _mixed_units(setup: Setup) -> bool:
    """Whether FSDP1 computes gradients of frozen weights, since adapters share a flat parameter
    with them (``use_orig_params``: "the gradient memory usage will be larger than expected", docs
    of ``FullyShardedDataParallel``); the policy of peft keeps them apart.
    """
    sharded = setup.parallel.sharding == "fsdp1" and setup.parallel.dp > 1
    return (
        sharded and setup.recipe in PLAIN_LOOPS and setup.lora is not None and not setup.quantized
    )
