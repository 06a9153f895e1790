"""The answer to "will it fit, how much is left, what do I change?"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gputop_analysis.units import GIB
from gputop_analysis.vram.answer import Peak
from gputop_analysis.vram.fits import Fit
from gputop_analysis.vram.intervals import kind
from gputop_analysis.vram.levers import Lever
from gputop_analysis.vram.setup import Setup

LASTING = ("weights", "gradients", "optimizer")
"""Categories that are the same on any device: no kernel decides how large they are."""
LASTING_KIND = "lasting"


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
    typical_pct: tuple[float, float] | None = None
    """Percent of the reserved memory between which half of the measurements lay; None: the tier
    was not measured on enough sources.
    """
    uncalibrated: tuple[str, ...] = ()
    """What of the setup no measured run had; it makes ``interval_pct`` wider."""
    most_reserved: int = 0
    """Reserved bytes by what the setup leaves open, if more than the estimate; 0: no more."""
    levers: tuple[Lever, ...] = ()
    gpu: str = ""
    """The GPU that ``max_micro_batch`` is for: the one asked about, or the smallest that fits."""
    max_micro_batch: int | None = None
    """The largest micro-batch that fits on ``gpu``; None: not asked for."""
    runs_in_capacity: bool | None = None
    """Whether it runs on the GPU whose capacity was given; None: none was."""
    guessed: tuple[str, ...] = ()
    """What of a script's setup is not its own, in few words each."""
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def device_total(self) -> int:
        """Bytes that the process takes on its GPU, as the driver counts."""
        return self.peak.reserved + self.context + self.nccl

    @property
    def at_most(self) -> int:
        """Device total, bytes, below which 19 of 20 runs lie, whatever the setup leaves open."""
        reserved = max(self.peak.reserved, self.most_reserved)
        return round(reserved * (1 + self.interval_pct[1] / 100)) + self.context + self.nccl

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
            "typical_pct": list(self.typical_pct) if self.typical_pct else None,
            "needs_at_most_gib": gib(self.at_most),
            "uncalibrated": list(self.uncalibrated),
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
            "guessed": list(self.guessed),
            "notes": [*peak.notes, *self.notes],
            "setup": asdict(self.setup),
        }


def gib(size: float) -> float:
    """Bytes in GiB, exact as 2^30 is a power of two: parts still add up to the byte."""
    return size / GIB


def calibrated(estimate: Estimate, records: Iterable[Mapping[str, Any]]) -> Estimate:
    """An estimate that starts from what was measured of this model.

    The latest record of the same model and kind of setup, by the same tier, scales the allocated
    and the reserved peak. Without one, the latest of what lasts beyond a step (its kind ends in
    ``lasting``; a CPU measures no more) changes both by the difference in those categories. The
    breakdown gets the difference as ``measured_difference``, so that it still adds up.

    Args:
        estimate: by a tier alone.
        records: ``model``, ``kind``, ``ratio`` (measured over estimated), maybe ``tier`` and
            ``run``; the newest last.
    """
    setup, peak = estimate.setup, estimate.peak
    own_records = [record for record in records if record.get("tier") in (None, peak.tier)]
    name, trained = setup.model.name.lower(), kind(setup)
    if latest := _latest(own_records, name, trained):
        ratio = float(latest["ratio"])
        allocated, reserved = round(peak.allocated * ratio), round(peak.reserved * ratio)
        where = ""
    elif latest := _latest(own_records, name, f"{trained} {LASTING_KIND}"):
        ratio = float(latest["ratio"])
        more = round(sum(peak.breakdown.get(category, 0) for category in LASTING) * (ratio - 1))
        allocated, reserved = peak.allocated + more, peak.reserved + more
        where = " in " + ", ".join(LASTING)
    else:
        return estimate
    breakdown = dict(peak.breakdown)
    if allocated != peak.allocated:
        breakdown["measured_difference"] = allocated - peak.allocated
    scaled = replace(peak, allocated=allocated, reserved=reserved, breakdown=breakdown)
    note = (
        f"calibrated by {_named(str(latest.get('run') or ''))} of this model: "
        f"{100 * (ratio - 1):+.1f} %{where}"
    )
    return replace(estimate, peak=scaled, notes=(*estimate.notes, note))


def _latest(records: list[Mapping[str, Any]], model: str, wanted: str) -> Mapping[str, Any] | None:
    return next((record for record in reversed(records) if _of(record) == (model, wanted)), None)


def _named(run: str) -> str:
    if not run:
        return "a measured run"
    return f"a {run}" if run.startswith("probe ") else f"run {run}"


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
