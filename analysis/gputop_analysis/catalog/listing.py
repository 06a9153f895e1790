"""The catalog, sorted and filtered: GPUs with their rent and what a dollar of it buys."""

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
        if self.usd_per_hour:
            return self.tflops / self.usd_per_hour
        return None

    def to_json(self) -> dict[str, Any]:
        """The same with stable names and units."""
        spec = self.spec
        return {
            "name": spec.name,
            "aliases": list(spec.aliases),
            "vendor": spec.vendor,
            "architecture": spec.architecture,
            "memory_gb": spec.memory_gb,
            "usable_gib": spec.usable_gib,
            "bandwidth_gb_per_s": spec.bandwidth_gb_s,
            "dense_tflops": {dtype: rate / TERA for dtype, rate in spec.dense_flops.items()},
            "power_w": spec.power_w or None,
            "interconnect": spec.interconnect or None,
            "interconnect_gb_per_s": spec.interconnect_gb_s or None,
            "pcie": spec.pcie or None,
            "multiprocessors": spec.multiprocessors or None,
            "compute_capability": spec.compute_capability or None,
            "release_year": spec.release_year or None,
            "usd_per_hour": self.usd_per_hour,
            "spot_usd_per_hour": self.spot_usd_per_hour,
            "offers": self.offers,
            "tflops_per_usd_per_hour": self.tflops_per_usd,
            "source": spec.source,
            "cross_check": spec.cross_check or None,
            "doubtful": spec.doubtful,
        }


def listed(extra: Iterable[Offer] = ()) -> list[Listed]:
    """Every GPU by maker and generation; ``extra`` are the user's own offers, which come before
    the packaged ones.
    """
    offers_by_gpu: dict[str, list[Offer]] = {}
    for offer in extra:
        offers_by_gpu.setdefault(offer.gpu, []).append(offer)
    packaged: dict[str, list[Offer]] = {}
    for offer in offers():
        packaged.setdefault(offer.gpu, []).append(offer)
    return [
        _listed(spec, offers_by_gpu.get(spec.name) or packaged.get(spec.name) or [])
        for spec in _by_maker(gpus())
    ]


def _by_maker(specs: Iterable[GpuSpec]) -> list[GpuSpec]:
    """Makers in the order of the table, of each the older architecture first; those of one
    architecture as in the table.
    """
    specs = list(specs)
    makers = list(dict.fromkeys(spec.vendor for spec in specs))
    began: dict[str, int] = {}
    for spec in specs:
        generation = _generation(spec)
        began[generation] = min(spec.release_year, began.get(generation, spec.release_year))

    def place(spec: GpuSpec) -> tuple[int, int, str]:
        return makers.index(spec.vendor), began[_generation(spec)], _generation(spec)

    return sorted(specs, key=place)


def _generation(spec: GpuSpec) -> str:
    """Its architecture without the chip: ``Blackwell`` of ``Blackwell (GB202)``."""
    return spec.architecture.partition(" (")[0]


def _listed(spec: GpuSpec, offers: list[Offer]) -> Listed:
    steady = [offer for offer in offers if not offer.marketplace] or offers
    rents = [
        offer.on_demand_usd_per_hour for offer in steady if offer.on_demand_usd_per_hour is not None
    ]
    spots = [offer.spot_usd_per_hour for offer in offers if offer.spot_usd_per_hour is not None]
    return Listed(
        spec, median(rents) if rents else None, min(spots) if spots else None, len(offers)
    )


SORTS: dict[str, Callable[[Listed], float]] = {
    "vram": lambda row: -row.spec.usable_gib,
    "tflops": lambda row: -row.tflops,
    "bandwidth": lambda row: -row.spec.bandwidth_gb_s,
    "price": lambda row: row.usd_per_hour if row.usd_per_hour is not None else float("inf"),
    "price-performance": lambda row: -(row.tflops_per_usd or 0.0),
    "year": lambda row: -row.spec.release_year,
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
    matching_rows = [
        row
        for row in rows
        if row.spec.memory_gb >= min_memory_gb
        and vendor.lower() in row.spec.vendor.lower()
        and all(word in _text(row.spec) for word in wanted)
    ]
    return sorted(matching_rows, key=SORTS[sort]) if sort else matching_rows


def _text(spec: GpuSpec) -> str:
    return " ".join((spec.name, *spec.aliases, spec.vendor, spec.architecture)).lower()
