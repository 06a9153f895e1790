"""A calibrated estimate and what follows from its peak: fits, levers, largest micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gputop_analysis.vram.advice import advised
from gputop_analysis.vram.estimate import Estimate, calibrated
from gputop_analysis.vram.fits import Need, fits


def recalibrated(
    estimate: Estimate, records: Iterable[Mapping[str, Any]], gpu: str = "", advice: bool = True
) -> Estimate:
    """The estimate as the latest record of its model and kind scales it; the same where there is
    none.

    Args:
        estimate: by a tier alone.
        records: as of ``calibrated``.
        gpu: the GPU that the largest micro-batch is wanted for; empty: the smallest that fits.
        advice: whether the estimate is to have levers and the largest micro-batch.
    """
    recalibrated_estimate = calibrated(estimate, records)
    if recalibrated_estimate is estimate:
        return estimate
    peak, before = recalibrated_estimate.peak, estimate.peak
    ratio = peak.reserved / max(before.reserved, 1)
    course = replace(
        peak,
        phases={name: round(size * ratio) for name, size in peak.phases.items()},
        timeline=tuple((share, round(size * ratio)) for share, size in peak.timeline),
    )
    need = Need(course.allocated, course.reserved)
    scaled = replace(
        recalibrated_estimate, peak=course, fits=fits(recalibrated_estimate.setup, need)
    )
    return advised(scaled, need, gpu) if advice else scaled
