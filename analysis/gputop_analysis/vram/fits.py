"""On which GPUs of the catalog an estimate fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gputop_analysis import catalog
from gputop_analysis.vram.overhead import CONTEXT, nccl
from gputop_analysis.vram.rules import needs_fp8
from gputop_analysis.vram.setup import Setup

BF16_FROM = 8.0
"""Compute capability of NVIDIA's first GPUs with bf16."""
NEAR = 1.03
"""GPUs of one nominal size differ by less than this in what they leave."""


class Need:
    """What an estimate asks of a GPU; bytes.

    Between what is allocated and what would be reserved the allocator gives its cache back and
    tries again. Whether that is enough a replay tells; it is costly, so that each answer narrows
    the range in which the next is needed.

    Args:
        allocated: at the peak.
        reserved: at the peak, on a GPU with enough memory.
        runs_in: whether it runs where segments may take so many bytes, by replay; None: only
            ``reserved`` says.
    """

    def __init__(
        self, allocated: int, reserved: int, runs_in: Callable[[int], bool] | None = None
    ) -> None:
        self.allocated = allocated
        self.reserved = reserved
        self._runs_in = runs_in
        self._enough = reserved
        self._short = allocated - 1 if runs_in else reserved - 1

    def within(self, capacity: int) -> bool:
        """Whether it runs where segments may take ``capacity``."""
        if self._runs_in is not None and self._short < capacity < self._enough:
            if self._runs_in(capacity):
                self._enough = capacity
            else:
                self._short = capacity
        return capacity >= self._enough


class Fit(NamedTuple):
    """One GPU; bytes."""

    gpu: str
    memory: int
    """As the driver shows it."""
    fits: bool
    headroom: int
    """Left beside the device total; below 0 where short, or run only by freeing the cache."""


def overhead(setup: Setup) -> int:
    """Bytes on the GPU that are not the allocator's."""
    return CONTEXT + nccl(setup)


def usable(spec: catalog.GpuSpec, setup: Setup) -> int:
    """Bytes of a GPU that a server beside the training leaves."""
    return int(spec.usable_bytes * (1 - setup.server_share))


def rooms(setup: Setup) -> list[list[int]]:
    """Bytes for segments on each GPU that can run it, least first; in groups of ``NEAR``."""
    besides = overhead(setup)
    groups: list[list[int]] = []
    for room in sorted({usable(spec, setup) - besides for spec in _gpus(setup)}):
        if not groups or room > NEAR * groups[-1][0]:
            groups.append([])
        groups[-1].append(room)
    return groups


def fits(setup: Setup, need: Need) -> tuple[Fit, ...]:
    """Every GPU of the catalog that PyTorch runs on, the smallest first."""
    besides = overhead(setup)
    specs = sorted(_gpus(setup), key=lambda spec: spec.usable_bytes)
    _settle(need, rooms(setup))
    by_size = []
    for spec in specs:
        room = usable(spec, setup) - besides
        by_size.append(Fit(spec.name, spec.usable_bytes, need.within(room), room - need.reserved))
    return tuple(by_size)


def _settle(need: Need, upwards: list[list[int]]) -> None:
    """Ask for the rooms, the least first, until one is enough: to run out of memory is soon told,
    to run is told once.

    Where the least of some near one another is not enough, the most of them is asked about next:
    mostly nor is that.
    """
    for group in upwards:
        if need.within(group[0]) or (
            need.within(group[-1]) and any(need.within(room) for room in group)
        ):
            return


def smallest(setup: Setup, need: Need) -> catalog.GpuSpec | None:
    """The GPU of least memory on which it fits, of those with sure figures that compute in its
    dtype; None: on none.
    """
    besides = overhead(setup)
    sure = (spec for spec in _gpus(setup) if not spec.doubtful and computes(spec, setup.dtype))
    able = (spec for spec in sure if need.within(usable(spec, setup) - besides))
    return min(able, key=lambda spec: spec.usable_bytes, default=None)


def computes(spec: catalog.GpuSpec, dtype: str) -> bool:
    """Whether its units multiply in a dtype; NVIDIA's have bf16 from Ampere on."""
    if dtype == "bf16" and spec.vendor == "NVIDIA":
        return float(spec.compute_capability) >= BF16_FROM
    return True


def _gpus(setup: Setup) -> list[catalog.GpuSpec]:
    """Where PyTorch runs and, for fp8, where the hardware has it."""
    able = [spec for spec in catalog.gpus() if spec.runs_torch]
    if needs_fp8(setup):
        return [spec for spec in able if "fp8" in spec.dense_flops]
    return able
