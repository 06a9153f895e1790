"""A few real steps beside the estimate, by category, and what later estimates take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gputop_analysis.vram.estimate import LASTING, LASTING_KIND, Estimate, gib
from gputop_analysis.vram.eventlog import EventLog
from gputop_analysis.vram.held import KEPT, most
from gputop_analysis.vram.intervals import kind
from gputop_analysis.vram.setup import Setup


class Row(NamedTuple):
    """One size, estimated and measured, bytes; None where one of the two does not know."""

    what: str
    estimated: int | None
    measured: int | None

    @property
    def difference_pct(self) -> float | None:
        """Measured against estimated."""
        if self.estimated and self.measured:
            return 100 * (self.measured / self.estimated - 1)
        return None

    def to_json(self) -> dict[str, Any]:
        """Under stable names."""
        return {
            "what": self.what,
            "estimated_gib": None if self.estimated is None else gib(self.estimated),
            "measured_gib": None if self.measured is None else gib(self.measured),
            "difference_pct": self.difference_pct,
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """A probe's result."""

    model: str
    tier: str
    device: str
    """``cuda`` or ``cpu``."""
    gpu: str | None
    versions: Mapping[str, str]
    rows: tuple[Row, ...]
    whole: bool = False
    """Whether the estimated categories are the most of each, and not those alive at the peak."""
    stored: bool = False

    def row(self, what: str) -> Row:
        """The row of that name; an empty one if there is none."""
        return next((row for row in self.rows if row.what == what), Row(what, None, None))

    def to_json(self) -> dict[str, Any]:
        """Under stable names; sizes in GiB."""
        return {
            "model": self.model,
            "tier": self.tier,
            "device": self.device,
            "gpu": self.gpu,
            "versions": dict(self.versions),
            "compared": [row.to_json() for row in self.rows],
            "stored": self.stored,
        }


def compared(estimate: Estimate, log: EventLog | None, measured: Mapping[str, Any]) -> Compared:
    """Like with like: the categories as their tensors count them, the peaks as the allocator does.

    Args:
        estimate: by a tier alone.
        log: the events that it comes from; without them its breakdown at the peak stands for the
            categories.
        measured: bytes as ``gputop_tracer.probe`` writes them.
    """
    breakdown, peak = estimate.peak.breakdown, estimate.peak
    peak_bytes: Mapping[str, int] = breakdown if log is None else most(log)
    rows = [Row(name, peak_bytes.get(name), measured.get(f"{name}_bytes")) for name in LASTING]
    rows.append(Row(KEPT, peak_bytes.get(KEPT), measured.get("activations_bytes")))
    phases = measured.get("phases_bytes") or {}
    rows += [Row(f"peak in {name}", peak.phases.get(name), size) for name, size in phases.items()]
    rows.append(Row("peak allocated", peak.allocated, measured.get("peak_allocated_bytes")))
    rows.append(Row("peak reserved", peak.reserved, measured.get("peak_reserved_bytes")))
    return Compared(
        model=estimate.setup.model.name,
        tier=peak.tier,
        device=str(measured["device"]),
        gpu=measured.get("gpu"),
        versions=measured.get("versions") or {},
        rows=tuple(rows),
        whole=log is not None,
    )


def record(compared: Compared, setup: Setup) -> dict[str, Any] | None:
    """What is stored of it; None where nothing was both estimated and measured.

    A GPU's peak counts as a whole. Of a CPU only what lasts beyond a step counts (see ``LASTING``);
    of gradients it is known how much lives at the peak only where there are events.
    """
    common = {"model": compared.model, "kind": kind(setup), "tier": compared.tier}
    peak = compared.row("peak allocated")
    if peak.estimated and peak.measured:
        reserved = compared.row("peak reserved").measured or 0
        return common | {
            "ratio": round(peak.measured / peak.estimated, 6),
            "estimated_allocated_gib": gib(peak.estimated),
            "measured_allocated_gib": gib(peak.measured),
            "measured_reserved_gib": gib(reserved),
            "run": f"probe on {compared.gpu or 'a GPU'}",
        }
    always = [compared.row(name) for name in LASTING if compared.whole or name != "gradients"]
    pairs = [
        (row.estimated or 0, row.measured or 0) for row in always if row.difference_pct is not None
    ]
    if pairs:
        estimated, measured = (sum(side) for side in zip(*pairs, strict=True))
    else:
        estimated, measured = (0, 0)
    if not estimated:
        return None
    return common | {
        "kind": f"{kind(setup)} {LASTING_KIND}",
        "ratio": round(measured / estimated, 6),
        "estimated_lasting_gib": gib(estimated),
        "measured_lasting_gib": gib(measured),
        "run": f"probe on a {compared.device.upper()}",
    }
