"""The catalog screen as plain data: order, filter, marks; and a GPU's facts in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from gputop_analysis.catalog.listing import SORTS, TERA, Listed, chosen
from gputop_analysis.text import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_MARKED = 4
ORDERS = ("", *SORTS)
"""``""`` is by maker and generation."""


@dataclass(frozen=True, slots=True)
class CatalogView:
    """Which GPUs are seen, in which order, and which of them are marked."""

    everything: tuple[Listed, ...]
    sort: str = ""
    words: str = ""
    marked: tuple[str, ...] = ()
    """Names in the order of their marking; a filter or another order does not change them."""

    @property
    def shown(self) -> list[Listed]:
        """Those that match what was typed, sorted."""
        return chosen(self.everything, self.sort, words=self.words)

    @property
    def compared(self) -> list[Listed]:
        """The marked ones, whether they are shown or not."""
        by_name = {row.spec.name: row for row in self.everything}
        return [by_name[name] for name in self.marked]

    def resorted(self) -> CatalogView:
        """In the next order."""
        return replace(self, sort=ORDERS[(ORDERS.index(self.sort) + 1) % len(ORDERS)])

    def filtered(self, words: str) -> CatalogView:
        """Only those that have all these words in their name, alias, maker or architecture."""
        return replace(self, words=words)

    def toggled(self, name: str) -> CatalogView:
        """With a mark set or taken away; the oldest goes where there are four."""
        remaining = tuple(name_ for name_ in self.marked if name_ != name)
        if len(remaining) < len(self.marked):
            marked = remaining
        else:
            marked = (*remaining, name)[-MOST_MARKED:]
        return replace(
            self,
            marked=marked,
        )


def first_view() -> CatalogView:
    """The whole catalog, with the user's own prices."""
    from gputop.own_prices import load
    from gputop_analysis.catalog.listing import listed

    return CatalogView(tuple(listed(load())))


def dollars(value: float | None) -> str:
    """Cents matter at a dollar an hour."""
    return MISSING if value is None else f"{value:.2f}"


def dense_tflops(row: Listed, kind: str) -> str:
    """Of one precision; a dash where the chip does not have it."""
    rate = row.spec.dense_flops.get(kind, 0.0) / TERA
    if not rate:
        return MISSING
    if rate >= 1000:
        return f"{rate:,.0f}"
    return f"{rate:.4g}"


def facts(row: Listed) -> dict[str, str]:
    """All that is known of a GPU by what it is called; the name itself stands under ``""``."""
    spec = row.spec
    if spec.interconnect_gb_s:
        link = f"{spec.interconnect} {spec.interconnect_gb_s:,g} GB/s"
    else:
        link = spec.interconnect or MISSING
    rates = {}
    for precision in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4"):
        rate = dense_tflops(row, precision)
        rates[f"{precision} dense"] = rate if rate == MISSING else f"{rate} TFLOP/s"
    rent = spot = MISSING
    if row.usd_per_hour is not None:
        rent = f"${dollars(row.usd_per_hour)}/h, {row.offers} offers"
    if row.spot_usd_per_hour is not None:
        spot = f"${dollars(row.spot_usd_per_hour)}/h"
    return {
        "": spec.name,
        "maker": f"{spec.vendor} {spec.architecture}",
        "memory": f"{spec.memory_gb:g} GB, {spec.usable_gib:g} GiB usable",
        "bandwidth": f"{spec.bandwidth_gb_s:,.0f} GB/s",
        **rates,
        "rent": rent,
        "spot, lowest": spot,
        "links": link,
        "PCIe": spec.pcie or MISSING,
        "power": f"{spec.power_w:g} W" if spec.power_w else MISSING,
        "processors": str(spec.multiprocessors or MISSING),
        "capability": spec.compute_capability or MISSING,
        "year": str(spec.release_year or MISSING),
        "aliases": ", ".join(spec.aliases) or MISSING,
        "source": spec.source,
        "checked": spec.cross_check or MISSING,
    }


class Axis(NamedTuple):
    """What a rent is plotted against."""

    name: str
    label: str


AXES = (Axis("tflops", "dense 16-bit TFLOP/s"), Axis("memory", "usable GiB"))


class GpuPoint(NamedTuple):
    """One GPU of the plot."""

    usd_per_hour: float
    value: float
    name: str
    vendor: str


def points(rows: Sequence[Listed], axis: str) -> list[GpuPoint]:
    """Those whose rent is known, cheapest first."""
    points_ = [
        GpuPoint(
            row.usd_per_hour,
            row.tflops if axis == "tflops" else row.spec.usable_gib,
            row.spec.name,
            row.spec.vendor,
        )
        for row in rows
        if row.usd_per_hour is not None
    ]
    return sorted(points_)


def front(found: Sequence[GpuPoint]) -> list[GpuPoint]:
    """Those than which none gives more for at most the same rent; ``found`` is sorted by rent."""
    front_: list[GpuPoint] = []
    for point in sorted(found, key=lambda one: (one.usd_per_hour, -one.value)):
        if not front_ or point.value > front_[-1].value:
            front_.append(point)
    return front_
