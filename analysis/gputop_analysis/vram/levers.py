"""What to change to need less: each change for a setup, estimated by the same tier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gputop_analysis.vram import conf
from gputop_analysis.vram.rules import check
from gputop_analysis.vram.setup import Lora, Setup

WORTH = 64 << 20
"""Bytes below which a change is not worth naming."""
GROUP = 8
"""GPUs of a node, over which a run on one GPU could be sharded."""
_EIGHT_BIT = {
    "adamw": "adamw-8bit",
    "adamw-fused": "adamw-8bit",
    "adamw-loop": "adamw-8bit",
    "lion": "lion-8bit",
}
_NEXT_ZERO = {"none": "zero1", "ddp": "zero1", "zero1": "zero2", "zero2": "zero3"}


class Lever(NamedTuple):
    """A change and what it does; bytes."""

    change: str
    setup: Setup
    reserved: int
    saves: int
    gpu: str = ""
    """The smallest GPU that it then fits on, where the unchanged setup does not; empty: none."""
    gpu_memory: int = 0


def changes(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """(name, changed setup) of every change that applies and leaves something to train."""
    for group_changes in (_activations, _states, _adapters, _sharding, _allocator):
        for name, changed in group_changes(setup):
            if _possible(changed):
                yield name, changed


def levers(reserved: int, asked: Iterable[tuple[str, Setup]], others: Iterable[int]) -> list[Lever]:
    """The changes that save, the one that saves most first.

    Args:
        reserved: the unchanged setup's peak, in bytes.
        asked: ``changes`` of it.
        others: the peak with each of them, by the same tier, in bytes.
    """
    answered = zip(asked, others, strict=True)
    saving = [
        Lever(name, to, other, reserved - other)
        for (name, to), other in answered
        if reserved - other >= WORTH
    ]
    return sorted(saving, key=lambda lever: -lever.saves)


def _activations(setup: Setup) -> Iterator[tuple[str, Setup]]:
    if setup.checkpointing == "none":
        yield "selective checkpointing", setup.but(checkpointing="selective")
    if setup.checkpointing != "full":
        yield "checkpointing", setup.but(checkpointing="full")
    if setup.loss == "plain":
        yield "fused loss", setup.but(loss="fused")
    if setup.attention == "eager":
        yield "flash attention", setup.but(attention="flash")
    half = setup.micro_batch // 2
    for size in sorted({half, 1} - {0, setup.micro_batch}, reverse=True):
        steps = -(-setup.micro_batch * setup.accumulation // size)
        yield (
            f"micro-batch {size}, accumulation {steps}",
            setup.but(micro_batch=size, accumulation=steps),
        )


def _states(setup: Setup) -> Iterator[tuple[str, Setup]]:
    if setup.optimizer in _EIGHT_BIT:
        yield (
            f"{_EIGHT_BIT[setup.optimizer]} optimizer",
            setup.but(optimizer=_EIGHT_BIT[setup.optimizer]),
        )
    if setup.optimizer == "adamw":
        yield "fused AdamW", setup.but(optimizer="adamw-fused")
    if setup.weights == "fp32" and setup.dtype in ("bf16", "fp16") and setup.dtype == "bf16":
        yield "bf16 weights", setup.but(weights="bf16")


def _adapters(setup: Setup) -> Iterator[tuple[str, Setup]]:
    if setup.optimizer == "none":
        return
    lora = setup.lora or Lora(rank=16, targets=("all-linear",))
    if setup.lora is None:
        yield "LoRA rank 16", setup.with_adapters(lora)
    if not setup.quantized:
        yield "QLoRA (nf4)", setup.with_adapters(lora, "nf4")


def _sharding(setup: Setup) -> Iterator[tuple[str, Setup]]:
    parallel = setup.parallel
    if parallel.world == 1 and not setup.quantized:
        yield f"FSDP over {GROUP} GPUs", setup.but(dp=GROUP, sharding="fsdp2")
    if parallel.dp > 1 and parallel.sharding in _NEXT_ZERO:
        stage = _NEXT_ZERO[parallel.sharding]
        yield stage.replace("zero", "ZeRO-"), setup.but(sharding=stage)
    if parallel.dp > 1 and parallel.sharding in ("none", "ddp"):
        yield "FSDP", setup.but(sharding="fsdp2")
    if parallel.sharding == "hsdp" and parallel.replicas > 1:
        yield "FSDP over all ranks", setup.but(sharding="fsdp2", replicas=1)
    if parallel.offload == "none" and parallel.sharding in (
        "zero1",
        "zero2",
        "zero3",
        "fsdp1",
        "fsdp2",
        "hsdp",
    ):
        yield "optimizer on the host", setup.but(offload="optimizer")


def _allocator(setup: Setup) -> Iterator[tuple[str, Setup]]:
    if not conf.parse(setup.allocator).expandable_segments:
        options = [
            part
            for part in setup.allocator.split(",")
            if part and not part.startswith("expandable_segments")
        ]
        yield (
            "expandable segments",
            setup.but(allocator=",".join([*options, "expandable_segments:True"])),
        )


def _possible(setup: Setup) -> bool:
    try:
        check(setup)
    except ValueError:
        return False
    return True
