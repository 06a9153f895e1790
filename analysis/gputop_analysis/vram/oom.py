"""Out of memory, explained: the layer that asked, what held it, the nearest change that fits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gputop_analysis.text import MISSING, step_number
from gputop_analysis.units import GIB
from gputop_analysis.view import RunView

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.levers import Lever
    from gputop_analysis.vram.setup import Setup

STRONGEST = 2
"""Changes that others are tried beside."""
Event = Mapping[str, Any]

_SIZE = r"([\d.]+) ([KMGT]?i?B)"
_UNITS = {
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
}
_PATTERNS = {
    "asked": rf"Tried to allocate {_SIZE}",
    "total": rf"total capacity of {_SIZE}",
    "free": rf"of which {_SIZE} is free",
    "allocated": rf"{_SIZE} is allocated by PyTorch",
    "idle": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
_HELD = {
    "weights": "weights_bytes",
    "gradients": "gradients_bytes",
    "optimizer states": "optimizer_bytes",
    "buffers": "buffers_bytes",
}
REST = "activations and temporaries"
SPARE = 0.02
"""Of the card, that a change must leave free to be said to fit."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """What one exception says; bytes."""

    rank: int | None
    step: int | None
    phase: str
    layer: str
    """Path of the innermost module in its forward; empty in backward and the optimizer."""
    layer_class: str
    sizes: dict[str, float] = field(default_factory=dict)
    """``asked``, ``total``, ``free``, ``allocated``, ``idle``, as far as the message says them."""
    held: dict[str, int] = field(default_factory=dict)
    """What the memory was held for, the largest first."""

    @property
    def demand(self) -> float:
        """Bytes on the device with which this allocation would have gone through, at least."""
        allocated, asked_bytes = self.sizes.get("allocated", 0.0), self.sizes.get("asked", 0.0)
        foreign = max(self.sizes.get("total", 0.0) - self.sizes.get("free", 0.0) - allocated, 0.0)
        return allocated + asked_bytes + foreign - self.sizes.get("idle", 0.0)

    def where(self) -> str:
        """The layer and the phase in words."""
        layer = f"{self.layer} ({self.layer_class}), " if self.layer else ""
        return f"{layer}phase {self.phase}, step {step_number(self.step)}"

    def holders(self) -> str:
        """What held the memory, in GiB."""
        return ", ".join(
            f"{name} {size / GIB:.2f} GiB" for name, size in self.held.items() if size >= GIB / 200
        )


def sizes(message: str) -> dict[str, float]:
    """Bytes by name in PyTorch's out-of-memory message (c10/cuda/CUDACachingAllocator.cpp)."""
    by_name = {}
    for name, pattern in _PATTERNS.items():
        match = re.search(pattern, message)
        if match:
            by_name[name] = float(match.group(1)) * _UNITS.get(match.group(2).upper(), 1)
    return by_name


def explain(event: Event) -> OutOfMemory:
    """An ``exception`` event of such an error."""
    message_sizes = sizes(str(event.get("message") or ""))
    if isinstance(event.get("memory"), Mapping):
        memory = event.get("memory")
    else:
        memory = {}
    assert isinstance(memory, Mapping)
    if memory.get("allocated_bytes") and "allocated" not in message_sizes:
        message_sizes["allocated"] = float(memory["allocated_bytes"])
    step = event.get("step")
    return OutOfMemory(
        rank=event.get("rank"),
        step=int(step) if isinstance(step, int) else None,
        phase=str(event.get("phase") or MISSING),
        layer=str(event.get("module") or ""),
        layer_class=str(event.get("module_class") or ""),
        sizes=message_sizes,
        held=_held(memory, message_sizes.get("allocated", 0.0)),
    )


def _held(memory: Event, allocated: float) -> dict[str, int]:
    """By holder, the largest first; the uncounted rest is activations and temporaries."""
    held_bytes = {name: int(memory.get(key) or 0) for name, key in _HELD.items()}
    if allocated:
        held_bytes[REST] = max(0, round(allocated) - sum(held_bytes.values()))
    return dict(
        sorted(
            ((name, size) for name, size in held_bytes.items() if size), key=lambda item: -item[1]
        )
    )


def nearest_lever(view: RunView, out_of_memory: OutOfMemory) -> tuple[Lever, Estimate] | None:
    """The change with the smallest saving that would have fitted, and the estimate it is a change
    of.

    The estimate is lifted to what the run is known to have asked for, where that was more. Where no
    change alone is enough, the nearest of two together is named.

    Returns:
        None where the model or the card's memory is not known, or no two changes are enough.
    """
    from gputop_analysis.vram.from_run import setup_of

    hello = view.record.hello(out_of_memory.rank or 0) or {}
    total = out_of_memory.sizes.get("total") or float(hello.get("device_memory_bytes") or 0)
    setup = setup_of(view, out_of_memory.rank)
    if setup is not None and total:
        return _nearest(setup, out_of_memory.demand, total)
    return None


@lru_cache(8)
def _nearest(setup: Setup, demand: float, total: float) -> tuple[Lever, Estimate] | None:
    """Asked at each look at a run, and always the same."""
    from gputop_analysis.vram.question import estimate

    try:
        answer = estimate(setup)
        need = max(float(answer.device_total), demand, total)
        wanted = need - (1 - SPARE) * total
        lever = _least(answer.levers, wanted) or _least(_pairs(answer), wanted)
    except ValueError:
        return None
    return None if lever is None else (lever, answer)


def _least(levers: Iterable[Lever], wanted: float) -> Lever | None:
    return min(
        (lever for lever in levers if lever.saves >= wanted),
        key=lambda lever: lever.saves,
        default=None,
    )


def _pairs(answer: Estimate) -> Iterator[Lever]:
    """What the strongest changes on the same GPUs save together with each that is left after them.

    Two tiers may differ on the first change; the smaller saving counts.
    """
    from gputop_analysis.vram.question import estimate

    here = [
        lever
        for lever in answer.levers
        if lever.setup.parallel.world == answer.setup.parallel.world
    ]
    for first in here[:STRONGEST]:
        then = estimate(first.setup)
        saves = min(first.saves, answer.peak.reserved - then.peak.reserved)
        for second in then.levers:
            yield second._replace(
                change=f"{first.change} and {second.change}", saves=saves + second.saves
            )
