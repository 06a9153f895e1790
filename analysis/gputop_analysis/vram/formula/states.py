"""What a rank holds through the whole step: weights, gradients, optimizer states and master
weights.

Counting follows ZeRO (Rajbhandari et al. 2020, section 3): with ``p`` bytes of weights, ``g`` of
gradients and ``k`` of optimizer states a parameter, stage 1 divides ``k``, stage 2 also ``g`` and
stage 3 also ``p`` by the data-parallel ranks. FSDP's full shard is stage 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.vram.formula import galore
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.habits import Habits
from gputop_analysis.vram.formula.parts import Part
from gputop_analysis.vram.setup import GALORE, TRANSFORMERS_CODE

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""bitsandbytes, double quantised (Dettmers et al. 2023, section 3): an 8-bit constant a block of
64, fp32 a block of 256.
"""
NF4_SINGLE_BYTES = 0.5 + 4 / 64
"""The same without the second quantisation: an fp32 constant a block of 64."""

MOMENTS = {
    "adamw": 2,
    "adamw-fused": 2,
    "adamw-loop": 2,
    "lion": 1,
    "sgd-momentum": 1,
    "muon": 1,
    "came": 1,
    "galore": 2,
}
"""Values of the optimizer's state that are as large as the parameter; 0 for the rest (Adafactor
keeps rows and columns).
"""
FLAT_MOMENTS = MOMENTS | {"adafactor": 1, "came": 2}
"""The same of a flat tensor, which has no rows and columns."""
FP32_STATES = ("lion",)
"""Optimizers of bitsandbytes, whose states have 32 bits whatever the parameters have."""
EIGHT_BIT = {"adamw-8bit": 2, "lion-8bit": 1, "galore-8bit": 2}
EIGHT_BIT_BYTES = 1 + 4 / 256
"""bitsandbytes: a byte, and an fp32 constant a block of 256 (Dettmers et al. 2022, section 2)."""


@dataclass(frozen=True, slots=True)
class States:
    """Bytes on this rank."""

    weights: Number
    gradients: Number
    optimizer: Number
    master: Number


def states(d: Dims, parts: tuple[Part, ...], habits: Habits) -> States:
    """Of the actor and of the models that live beside it."""
    stage = d.setup.parallel.stage
    trained = [part for part in parts if part.trained]
    copies = 1 + ("critic" in d.setup.roles)
    frozen = sum(role in d.setup.roles for role in ("reference", "reward"))
    weights = sum(
        part.count * weight_bytes(d, part, habits) / over(d, part, stage >= 3) for part in parts
    )
    gradients = sum(
        part.count * gradient_bytes(d, part, habits) / over(d, part, stage >= 2)
        for part in parts
        if has_gradient(part, habits)
    )
    moments = sum(
        part.count * moment_bytes(d, part, habits) / over(d, part, stage >= 1) for part in trained
    )
    master = sum(part.count * habits.master / over(d, part, stage >= 1) for part in trained)
    offload = d.setup.parallel.offload
    # DeepSpeed's share of the gradients goes to the host's fp32 copy, parameter by parameter
    # (stage_1_and_2.py: ``copy_grads_in_partition``, stage3.py: ``grad_partitions_flat_buffer``)
    by_host = offload == "optimizer" and d.recipe == "deepspeed" and stage >= 2
    here = 0 if offload in ("optimizer", "all") else 1
    return States(
        weights=weights * (copies + frozen) * (offload != "all"),
        gradients=gradients * copies * (offload != "all" and not by_host),
        optimizer=moments * copies * here,
        master=master * copies * here,
    )


def has_gradient(part: Part, habits: Habits) -> bool:
    """Whether a gradient of a part is computed, though it may not be trained: what lies in a
    layer's unit beside adapters.
    """
    return part.trained or (habits.mixed_units and part.name in ("layers", "norms", "experts"))


def over(d: Dims, part: Part, sharded: bool) -> Number:
    """How many ranks share a part."""
    if not sharded:
        return 1
    return d.expert_shards if part.expert else d.shards


def weight_bytes(d: Dims, part: Part, habits: Habits) -> float:
    """Of one parameter of a part as it is stored."""
    if part.name == "adapters":
        return habits.adapters
    if part.linear and d.setup.quantized:
        return _quantised_bytes(d)
    return habits.weights


def _quantised_bytes(d: Dims) -> float:
    if d.setup.quantized != "nf4":
        return 1.0
    return NF4_BYTES if d.setup.double_quant else NF4_SINGLE_BYTES


def gradient_bytes(d: Dims, part: Part, habits: Habits) -> float:
    """Of one parameter's gradient."""
    if part.name == "adapters":
        return weight_bytes(d, part, habits)
    return habits.gradients


def keeps_fp32_embeddings(d: Dims) -> bool:
    """Whether 8-bit optimizers keep embeddings' states in fp32, as the Trainer of Transformers
    tells bitsandbytes (``GlobalOptimManager`` in its ``trainer_optimizer.py``), but for GaLore's.
    """
    return (
        d.setup.optimizer not in GALORE and d.recipe in TRANSFORMERS_CODE and not flat_partitions(d)
    )


def flat_partitions(d: Dims) -> bool:
    """Whether the optimizer updates a rank's share of all parameters as one fp32 tensor."""
    return d.recipe == "deepspeed" and d.setup.parallel.stage > 0


def moment_bytes(d: Dims, part: Part, habits: Habits) -> float:
    """Of one parameter's optimizer states together, as far as torch's allocator counts them (paged
    ones it does not).
    """
    name = d.setup.optimizer
    if galore.projects(d, part):
        eight_bit = name in EIGHT_BIT
        moment = EIGHT_BIT_BYTES if eight_bit else habits.states
        return galore.state_bytes(d, part, habits.gradients, moment)
    if name in EIGHT_BIT and part.name in ("embeddings", "saved") and keeps_fp32_embeddings(d):
        return EIGHT_BIT[name] * 4.0
    if name in EIGHT_BIT:
        return EIGHT_BIT[name] * EIGHT_BIT_BYTES
    if part.name == "adapters":
        bytes_per_value = 4.0 if habits.master else habits.adapters
    else:
        bytes_per_value = habits.states
    if name in FP32_STATES:
        bytes_per_value = 4.0
    moments = (FLAT_MOMENTS if flat_partitions(d) else MOMENTS).get(name, 0)
    if name == "muon" and part.name in ("embeddings", "head", "norms"):
        moments = 2  # AdamW's share: what is no hidden matrix (Jordan 2024)
    return moments * bytes_per_value
