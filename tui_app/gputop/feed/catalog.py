"""What the catalog screen shows, as plain data: an order, a filter, marks; and the facts of a GPU
in words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from gputop_analysis.catalog.listing import SORTS, TERA, Listed, chosen
from gputop_analysis.text import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_MARKED = 4
ORDERS = ("", *SORTS)
"""``""`` is the order of the table: by maker and generation."""


@dataclass(frozen=True, slots=True)
class CatalogView:
    """Which GPUs are seen, in which order, and which of them are marked."""

    everything: tuple[Listed, ...]
    sort: str = ""
    words: str = ""
    marked: tuple[str, ...] = ()
    """Names, in the order in which they were marked; a filter or another order does not change
    them.
    """

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
        kept = tuple(one for one in self.marked if one != name)
        return replace(
            self, marked=kept if len(kept) < len(self.marked) else (*kept, name)[-MOST_MARKED:]
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
    return MISSING if not rate else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def facts(row: Listed) -> dict[str, str]:
    """All that is known of a GPU by what it is called; the name itself stands under ``""``."""
    one = row.spec
    link = (
        f"{one.interconnect} {one.interconnect_gb_s:g} GB/s"
        if one.interconnect_gb_s
        else one.interconnect or MISSING
    )
    rates = {
        kind: dense_tflops(row, kind) for kind in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
    }
    return {
        "": one.name,
        "maker": f"{one.vendor} {one.architecture}",
        "memory": f"{one.memory_gb:g} GB, {one.usable_gib:g} GiB usable",
        "bandwidth": f"{one.bandwidth_gb_s:,.0f} GB/s",
        **{
            f"{kind} dense": rate if rate == MISSING else f"{rate} TFLOP/s"
            for kind, rate in rates.items()
        },
        "rent": MISSING
        if row.usd_per_hour is None
        else f"${dollars(row.usd_per_hour)}/h, {row.offers} offers",
        "spot, lowest": MISSING
        if row.spot_usd_per_hour is None
        else f"${dollars(row.spot_usd_per_hour)}/h",
        "links": link,
        "PCIe": one.pcie or MISSING,
        "power": f"{one.power_w:g} W" if one.power_w else MISSING,
        "processors": str(one.multiprocessors or MISSING),
        "capability": one.compute_capability or MISSING,
        "year": str(one.release_year or MISSING),
        "aliases": ", ".join(one.aliases) or MISSING,
        "source": one.source,
        "checked": one.cross_check or MISSING,
    }


class Axis(NamedTuple):
    """What a rent is plotted against."""

    name: str
    label: str


AXES = (Axis("tflops", "dense 16-bit TFLOP/s"), Axis("memory", "usable GiB"))


class Point(NamedTuple):
    """One GPU of the plot."""

    usd_per_hour: float
    value: float
    name: str
    vendor: str


def points(rows: Sequence[Listed], axis: str) -> list[Point]:
    """Those whose rent is known, cheapest first."""
    found = [
        Point(
            row.usd_per_hour,
            row.tflops if axis == "tflops" else row.spec.usable_gib,
            row.spec.name,
            row.spec.vendor,
        )
        for row in rows
        if row.usd_per_hour is not None
    ]
    return sorted(found)


def front(found: Sequence[Point]) -> list[Point]:
    """Those than which none gives more for at most the same rent; ``found`` is sorted by rent."""
    kept: list[Point] = []
    for point in sorted(found, key=lambda one: (one.usd_per_hour, -one.value)):
        if not kept or point.value > kept[-1].value:
            kept.append(point)
    return kept
