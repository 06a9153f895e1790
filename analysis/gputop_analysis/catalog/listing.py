"""The catalog as a table that can be sorted and filtered: GPUs with their rent and what a dollar of
it buys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from gputop_analysis.catalog.gpus import GpuSpec, gpus
from gputop_analysis.catalog.prices import Offer, offers

TERA = 1e12


@dataclass(frozen=True, slots=True)
class Listed:
    """One GPU with its rent; dollars an hour for one GPU, None where no offer is known."""

    spec: GpuSpec
    usd_per_hour: float | None
    """Median of the on-demand offers, marketplaces left out where there are others."""
    spot_usd_per_hour: float | None
    """The lowest spot offer."""
    offers: int

    @property
    def tflops(self) -> float:
        """Dense 16-bit matrix products, TFLOP/s; bf16 where the chip has it."""
        rates = self.spec.dense_flops
        return (rates.get("bf16") or rates.get("fp16") or rates.get("fp32") or 0.0) / TERA

    @property
    def tflops_per_usd(self) -> float | None:
        """TFLOP/s for a dollar an hour."""
        return self.tflops / self.usd_per_hour if self.usd_per_hour else None

    def to_json(self) -> dict[str, Any]:
        """The same with stable names and units."""
        one = self.spec
        return {
            "name": one.name,
            "aliases": list(one.aliases),
            "vendor": one.vendor,
            "architecture": one.architecture,
            "memory_gb": one.memory_gb,
            "usable_gib": one.usable_gib,
            "bandwidth_gb_per_s": one.bandwidth_gb_s,
            "dense_tflops": {kind: rate / TERA for kind, rate in one.dense_flops.items()},
            "power_w": one.power_w or None,
            "interconnect": one.interconnect or None,
            "interconnect_gb_per_s": one.interconnect_gb_s or None,
            "pcie": one.pcie or None,
            "multiprocessors": one.multiprocessors or None,
            "compute_capability": one.compute_capability or None,
            "release_year": one.release_year or None,
            "usd_per_hour": self.usd_per_hour,
            "spot_usd_per_hour": self.spot_usd_per_hour,
            "offers": self.offers,
            "tflops_per_usd_per_hour": self.tflops_per_usd,
            "source": one.source,
            "cross_check": one.cross_check or None,
            "doubtful": one.doubtful,
        }


def listed(extra: Iterable[Offer] = ()) -> list[Listed]:
    """Every GPU in the table's order; ``extra`` are the user's own offers, which come before the
    packaged ones.
    """
    own: dict[str, list[Offer]] = {}
    for offer in extra:
        own.setdefault(offer.gpu, []).append(offer)
    packaged: dict[str, list[Offer]] = {}
    for offer in offers():
        packaged.setdefault(offer.gpu, []).append(offer)
    return [_listed(spec, own.get(spec.name) or packaged.get(spec.name) or []) for spec in gpus()]


def _listed(spec: GpuSpec, found: list[Offer]) -> Listed:
    steady = [one for one in found if not one.marketplace] or found
    rents = [one.on_demand_usd_per_hour for one in steady if one.on_demand_usd_per_hour is not None]
    spots = [one.spot_usd_per_hour for one in found if one.spot_usd_per_hour is not None]
    return Listed(spec, median(rents) if rents else None, min(spots) if spots else None, len(found))


SORTS: dict[str, Callable[[Listed], float]] = {
    "vram": lambda one: -one.spec.usable_gib,
    "tflops": lambda one: -one.tflops,
    "bandwidth": lambda one: -one.spec.bandwidth_gb_s,
    "price": lambda one: one.usd_per_hour if one.usd_per_hour is not None else float("inf"),
    "price-performance": lambda one: -(one.tflops_per_usd or 0.0),
    "year": lambda one: -one.spec.release_year,
}
"""By what a list can be sorted, the best first; what is not known comes last."""


def chosen(
    rows: Iterable[Listed],
    sort: str = "",
    vendor: str = "",
    min_memory_gb: float = 0.0,
    words: str = "",
) -> list[Listed]:
    """Those that match, sorted. ``words`` must all be in the name, an alias, the vendor or the
    architecture.

    Raises:
        ValueError: no such order.
    """
    if sort and sort not in SORTS:
        raise ValueError(f"no order {sort!r}: {', '.join(SORTS)}")
    wanted = words.lower().split()
    kept = [
        one
        for one in rows
        if one.spec.memory_gb >= min_memory_gb
        and vendor.lower() in one.spec.vendor.lower()
        and all(word in _text(one.spec) for word in wanted)
    ]
    return sorted(kept, key=SORTS[sort]) if sort else kept


def _text(spec: GpuSpec) -> str:
    return " ".join((spec.name, *spec.aliases, spec.vendor, spec.architecture)).lower()
