"""The answer to "will it fit, how much is left, what do I change?"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gputop_analysis.vram.answer import Peak
from gputop_analysis.vram.fits import Fit
from gputop_analysis.vram.intervals import kind
from gputop_analysis.vram.levers import Lever
from gputop_analysis.vram.setup import Setup

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Estimate:
    """A peak and what follows from it; bytes."""

    setup: Setup
    peak: Peak
    context: int
    """The CUDA context's."""
    nccl: int
    interval_pct: tuple[float, float]
    fits: tuple[Fit, ...]
    levers: tuple[Lever, ...] = ()
    gpu: str = ""
    """The GPU that ``max_micro_batch`` is for: the one asked about, or the smallest that fits."""
    max_micro_batch: int | None = None
    """The largest micro-batch that fits on ``gpu``; None: not asked for."""
    runs_in_capacity: bool | None = None
    """Whether it runs on the GPU whose capacity was given; None: none was."""
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def device_total(self) -> int:
        """Bytes that the process takes on its GPU, as the driver counts."""
        return self.peak.reserved + self.context + self.nccl

    def to_json(self) -> dict[str, Any]:
        """Plain values under stable names; sizes in GiB (2^30)."""
        peak = self.peak
        return {
            "tier": peak.tier,
            "peak_allocated_gib": gib(peak.allocated),
            "peak_reserved_gib": gib(peak.reserved),
            "device_total_gib": gib(self.device_total),
            "breakdown_gib": {name: gib(size) for name, size in peak.breakdown.items()},
            "peak_operation": peak.operation,
            "interval_pct": list(self.interval_pct),
            "fits": [_fit(fit) for fit in self.fits],
            "levers": [_lever(lever) for lever in self.levers],
            "max_micro_batch": self.max_micro_batch,
            "max_micro_batch_gpu": self.gpu or None,
            "sources": [*peak.sources, *self.sources],
            "fragmentation_gib": gib(peak.fragmentation),
            "cuda_context_gib": gib(self.context),
            "nccl_gib": gib(self.nccl),
            "phases_gib": {name: gib(size) for name, size in peak.phases.items()},
            "timeline_gib": [[share, round(gib(size), 6)] for share, size in peak.timeline],
            "layers_gib": {name: gib(size) for name, size in peak.layers},
            "fits_capacity": self.runs_in_capacity,
            "oom_operation": peak.oom or None,
            "alloc_retries": peak.retries,
            "notes": [*peak.notes, *self.notes],
            "setup": asdict(self.setup),
        }


def gib(size: float) -> float:
    """Bytes in GiB, not rounded: a power of two divides exactly, so that parts still add up to the byte."""
    return size / GIB


def calibrated(estimate: Estimate, records: Iterable[Mapping[str, Any]]) -> Estimate:
    """An estimate that starts from what was measured of this model.

    The latest record of the same model and kind of setup, by the same tier, scales the allocated and the reserved peak.
    The breakdown gets the difference as ``measured_difference``, so that it still adds up.

    Args:
        estimate: by a tier alone.
        records: ``model``, ``kind``, ``ratio`` (measured over estimated), maybe ``tier`` and ``run``; the newest last.
    """
    setup = estimate.setup
    wanted = (setup.model.name.lower(), kind(setup))
    known = [one for one in records if _of(one) == wanted and one.get("tier") in (None, estimate.peak.tier)]
    if not known:
        return estimate
    ratio = float(known[-1]["ratio"])
    peak = estimate.peak
    allocated = round(peak.allocated * ratio)
    breakdown = dict(peak.breakdown)
    if allocated != peak.allocated:
        breakdown["measured_difference"] = allocated - peak.allocated
    scaled = replace(peak, allocated=allocated, reserved=round(peak.reserved * ratio), breakdown=breakdown)
    run = known[-1].get("run")
    note = f"calibrated by {f'run {run}' if run else 'a measured run'} of this model: {100 * (ratio - 1):+.1f} %"
    return replace(estimate, peak=scaled, notes=(*estimate.notes, note))


def _of(record: Mapping[str, Any]) -> tuple[str, str]:
    return str(record.get("model", "")).lower(), str(record.get("kind", ""))


def _fit(fit: Fit) -> dict[str, Any]:
    return {
        "gpu": fit.gpu,
        "memory_gib": gib(fit.memory),
        "fits": fit.fits,
        "headroom_gib": gib(fit.headroom),
    }


def _lever(lever: Lever) -> dict[str, Any]:
    return {
        "change": lever.change,
        "peak_reserved_gib": gib(lever.reserved),
        "saves_gib": gib(lever.saves),
        "then_fits": lever.gpu or None,
        "then_fits_memory_gib": gib(lever.gpu_memory) if lever.gpu else None,
    }
