"""What a setup leaves open and its trainer decides: dtypes of what is kept, how long."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.catalog.families import traits
from gputop_analysis.vram.formula.dims import BYTES
from gputop_analysis.vram.formula.releases import release
from gputop_analysis.vram.setup import (
    KEEP_MASTER_WEIGHTS,
    PLAIN_LOOPS,
    TRANSFORMERS_CODE,
    Setup,
)

BF16_OPTIMIZER = ("none", "ddp", "zero1")
"""Shardings for which DeepSpeed's bf16 optimizer accumulates gradients in fp32."""
FSDP = ("fsdp1", "fsdp2", "hsdp")
INSIDE_UNITS = (4, 52)
"""Transformers from which on a layer recomputes itself, inside of what FSDP1 wraps around it."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Bytes of a value of each kind, and what stays in memory from one step to the next."""

    weights: float
    adapters: float
    """A weight of LoRA's; 0: there are none."""
    gradients: float
    states: float
    """One moment of the optimizer: Adam has two."""
    master: float
    """The fp32 copy of the weights; 0: there is none."""
    residual: float
    """The stream between layers, which none casts: fp32 under autocast and fp32 weights."""
    boundary: float
    """A layer's input as checkpointing keeps it."""
    casts_weights: bool
    """Autocast keeps a 16-bit copy of the weights of the linear layers for the backward pass."""
    casts_shards: bool
    """FSDP casts what it gathers: all weights are in the type of the products then."""
    casts_inputs: bool
    """Autocast gives each linear layer a 16-bit copy of its input."""
    flat_gradients: bool
    """Gradients live in one buffer that is never freed (Megatron's ``main_grad``, the partitions of
    ZeRO-3 in DeepSpeed's ``stage3.py``).
    """
    passing_gradients: float
    """A 16-bit gradient that a backward pass leaves until it is added to the fp32 one
    (nanotron's ``optim/gradient_accumulator.py``).
    """
    linear_input: float
    """A linear layer's input in 8 bits, as Transformer Engine's under fp8; 0: as it is."""
    frozen_boundary: float
    """A checkpointed layer's input with its gradient, if both stay until the backward's end."""
    waits_whole: bool
    """Under FSDP, gradients of several micro-batches wait unsharded until the last of them."""
    mixed_units: bool
    """Frozen weights have gradients, since they share FSDP1's flat parameters with adapters."""
    eager_norm: bool
    """RMSNorm written out in PyTorch operations, each of which keeps its own inputs."""


def habits(setup: Setup) -> Habits:
    """The habits of the trainer that ``setup.recipe`` names.

    Megatron-LM: bf16 weights, gradients accumulated in fp32
    (``--accumulate-allreduce-grads-in-fp32``, forced by ``--bf16``), fp32 master weights and
    moments. DeepSpeed with bf16 or fp16: the same, with gradients as the weights. nanotron: fp32
    gradients of all weights, whatever ZeRO-1 shards. DeepSpeed with bf16 and fp32 gradients, up to
    ZeRO-1: both at once (``bf16_optimizer.py`` sets the bf16 ones to zero and lets none go).
    Transformers, torchtitan and plain PyTorch: whatever the weights are.
    """
    weights = _weight_bytes(setup)
    gradients = _gradient_bytes(setup, weights)
    master = _master_bytes(setup, weights)
    both_gradients = _keeps_both_gradients(setup, weights, gradients)
    autocasts = _autocasts_weights(setup, weights)
    residual = _residual_bytes(setup, weights, autocasts)
    fp8_inputs = setup.recipe == "megatron" and setup.dtype == "fp8"
    return Habits(
        weights=weights,
        adapters=_adapter_bytes(setup, weights),
        gradients=gradients + weights if both_gradients else gradients,
        states=4.0 if master else weights,
        master=master,
        residual=residual,
        boundary=residual,
        linear_input=1.0 if fp8_inputs else 0.0,
        frozen_boundary=_frozen_boundary(setup),
        waits_whole=_waits_whole(setup),
        mixed_units=_mixed_units(setup),
        casts_weights=autocasts,
        casts_shards=_wider(setup, weights) and setup.parallel.sharding in FSDP,
        casts_inputs=autocasts,
        flat_gradients=both_gradients or _has_flat_gradients(setup),
        passing_gradients=weights if setup.recipe == "nanotron" else 0.0,
        eager_norm=_has_eager_norm(setup),
    )


def _weight_bytes(setup: Setup) -> float:
    """Bytes of a weight: as it is said, else in the type of the products, bf16 below 16 bits."""
    if setup.weights:
        return BYTES[setup.weights]
    if setup.dtype in ("fp32", "bf16", "fp16"):
        return BYTES[setup.dtype]
    return BYTES["bf16"]


def _adapter_bytes(setup: Setup, weights: float) -> float:
    """Bytes of an adapter's weight: DeepSpeed's engine casts the whole model to the type of the
    computation (``DeepSpeedEngine._configure_distributed_model``).
    """
    if setup.lora is None:
        return 0.0
    if setup.recipe == "deepspeed":
        return weights
    return BYTES[setup.lora.dtype]


def _master_bytes(setup: Setup, weights: float) -> float:
    """Bytes of a weight's fp32 copy; 0: there is none."""
    keeps_copy = setup.master_weights or setup.recipe in KEEP_MASTER_WEIGHTS
    return 4.0 if keeps_copy and weights < 4 else 0.0


def _gradient_bytes(setup: Setup, weights: float) -> float:
    if setup.grad_dtype:
        return BYTES[setup.grad_dtype]
    if setup.recipe == "nanotron":
        return 4.0
    if setup.recipe == "megatron" and setup.dtype != "fp16":
        return 4.0
    return weights


def _keeps_both_gradients(setup: Setup, weights: float, gradients: float) -> bool:
    """Whether bf16 gradients stay beside the fp32 ones that they are added to."""
    if setup.recipe != "deepspeed" or setup.dtype != "bf16":
        return False
    return gradients > weights and setup.parallel.sharding in BF16_OPTIMIZER


def _autocasts_weights(setup: Setup, weights: float) -> bool:
    """Whether weights are wider than the products; FSDP casts its shards before it gathers them."""
    return _wider(setup, weights) and setup.parallel.sharding not in FSDP


def _wider(setup: Setup, weights: float) -> bool:
    return weights > (4.0 if setup.dtype == "fp32" else 2.0)


def _residual_bytes(setup: Setup, weights: float, autocasts: bool) -> float:
    if setup.dtype == "fp32" or _raises_stream(setup):
        return 4.0
    return weights if autocasts else 2.0


def _has_flat_gradients(setup: Setup) -> bool:
    if setup.recipe == "deepspeed":
        return setup.parallel.sharding == "zero3"
    return setup.recipe in ("megatron", "nanotron")


def _has_eager_norm(setup: Setup) -> bool:
    fused = setup.kernels or setup.compile
    return setup.recipe in (*TRANSFORMERS_CODE, *PLAIN_LOOPS) and not fused


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
    sharded = setup.parallel.sharding in FSDP
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
