"""On which GPUs of the catalog an estimate fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputop_analysis import catalog
from gputop_analysis.vram.overhead import CONTEXT, nccl
from gputop_analysis.vram.rules import needs_fp8
from gputop_analysis.vram.setup import Setup


@dataclass(frozen=True, slots=True)
class Need:
    """What an estimate asks of a GPU; bytes."""

    allocated: int
    reserved: int
    runs_in: Callable[[int], bool] | None = None
    """Whether it runs when segments may take so many bytes, by replay; None: only ``reserved`` says."""

    def within(self, capacity: int) -> bool:
        """Whether it runs where segments may take ``capacity``.

        Between what is allocated and what would be reserved the allocator gives its cache back and tries again.
        """
        if capacity >= self.reserved:
            return True
        return self.runs_in is not None and capacity >= self.allocated and self.runs_in(capacity)


@dataclass(frozen=True, slots=True)
class Fit:
    """One GPU; bytes."""

    gpu: str
    memory: int
    """As the driver shows it."""
    fits: bool
    headroom: int
    """Left beside the device total; below 0 where it is short of it, or runs only by giving its cache back."""


def overhead(setup: Setup) -> int:
    """Bytes on the GPU that are not the allocator's."""
    return CONTEXT + nccl(setup)


def fits(setup: Setup, need: Need) -> tuple[Fit, ...]:
    """Every GPU of the catalog that PyTorch runs on, the smallest first."""
    besides = overhead(setup)
    answers: dict[int, bool] = {}
    found = []
    for spec in sorted(_gpus(setup), key=lambda spec: spec.usable_bytes):
        capacity = spec.usable_bytes - besides
        if capacity not in answers:
            answers[capacity] = need.within(capacity)
        found.append(Fit(spec.name, spec.usable_bytes, answers[capacity], capacity - need.reserved))
    return tuple(found)


def smallest(setup: Setup, need: Need) -> catalog.GpuSpec | None:
    """The GPU with the least memory on which it fits; None: on none."""
    besides = overhead(setup)
    able = [spec for spec in _gpus(setup) if need.within(spec.usable_bytes - besides)]
    return min(able, key=lambda spec: spec.usable_bytes, default=None)


def _gpus(setup: Setup) -> list[catalog.GpuSpec]:
    """Where PyTorch runs and, for fp8, where the hardware has it."""
    able = [spec for spec in catalog.gpus() if spec.runs_torch]
    return [spec for spec in able if "fp8" in spec.dense_flops] if needs_fp8(setup) else able
