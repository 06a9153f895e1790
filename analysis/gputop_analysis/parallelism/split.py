"""One training split over GPUs: degrees of parallelism, what is sharded, what is recomputed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STAGE = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp1": 3, "fsdp2": 3, "hsdp": 3}
"""What each kind of sharding divides, as the stage of ZeRO (Rajbhandari et al. 2020, section 3): 1
optimizer states, 2 gradients too, 3 parameters too.
"""
SHARDINGS = tuple(STAGE)
OF_STAGE = ("ddp", "zero1", "zero2", "zero3")
PER_PARAMETER = ("fsdp2", "hsdp")
"""Kinds that shard parameters one by one: gradients of micro-batches may wait unsharded."""
RECOMPUTES = ("none", "selective", "full")
"""What the backward pass computes again: nothing; the attention core where its scores are in memory
(Korthikanti et al. 2022, arXiv:2205.05198, section 5), else every second product and what is
elementwise; whole layers.
"""
OFFLOADS = ("none", "optimizer", "all")


@dataclass(frozen=True, slots=True)
class Split:
    """Degrees of parallelism; tp x pp x cp x dp is the world. ``dp``: all data-parallel ranks."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    """Model chunks of a pipeline stage (interleaved schedule)."""
    cp: int = 1
    ep: int = 1
    """Expert parallelism, folded into dp x cp x tp."""
    etp: int = 0
    """Tensor parallelism inside an expert; 0: see ``expert_tp``."""
    sequence_parallel: bool = False
    sharding: str = "none"
    """One of ``SHARDINGS``."""
    replicas: int = 1
    """HSDP: groups of ranks that hold a whole copy."""
    zero_bubble: bool = False
    """Backward in two, weight gradients where a stage waits (Qi et al. 2023, arXiv:2401.10241)."""
    offload: str = "none"
    """``none``, ``optimizer`` (states and update on the host) or ``all`` (parameters too)."""
    reshard_after_forward: bool = True
    pipeline_stage: int = 0
    """Which stage is asked about; 0 holds the most micro-batches in flight."""

    @property
    def world(self) -> int:
        """GPUs in all."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def stage(self) -> int:
        """What is sharded, as the stage of ZeRO."""
        return STAGE[self.sharding]

    @property
    def per_parameter(self) -> bool:
        """Whether parameters are sharded one by one (FSDP2)."""
        return self.sharding in PER_PARAMETER

    @property
    def shards(self) -> float:
        """Ranks that share what the sharding divides."""
        return self.dp * self.cp / self.replicas

    @property
    def expert_tp(self) -> int:
        """Tensor parallelism inside an expert, as ``expert_tensor_parallel`` has it."""
        return int(expert_tensor_parallel(self))


def expert_tensor_parallel(split: Any) -> Any:
    """Tensor parallelism inside an expert, elementwise: what is given, else ``tp`` where dp x cp
    has room for the expert groups (Megatron-LM's default), else 1, so that they fold over tp as
    well (Megatron-Core's ``--expert-tensor-parallel-size 1``).
    """
    room = split.shards % split.ep == 0
    by_default = split.tp * room + (1 - room)
    return split.etp + by_default * (split.etp == 0)


def chunk_layers(layers: int, chunks: int) -> list[int]:
    """Layers of each chunk of an interleaved (or plain) pipeline where they do not divide: the last
    and the first lack one first, as the head and the embedding are there (The Llama 3 Herd of
    Models, section 3.3.2), then those before the last.
    """
    largest = -(-layers // chunks)
    layers_of_chunks = [largest] * chunks
    lacking = [chunks - 1, 0, *range(chunks - 2, 0, -1)]
    for index in lacking[: largest * chunks - layers]:
        layers_of_chunks[index] -= 1
    return layers_of_chunks


def fields_of_split(row: Mapping[str, Any]) -> list[str]:
    """The names of a row that a ``Split`` has too."""
    return [name for name in row if name in Split.__dataclass_fields__]


def sharding(zero: int, replicas: int = 1) -> str:
    """The kind that a stage of the planner is: its stage 3 is FSDP2, with copies HSDP."""
    if zero == 3:
        return "hsdp" if replicas > 1 else "fsdp2"
    return OF_STAGE[zero]
