"""What an hour of a GPU costs to rent, from a packaged table of published prices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import median

from gputop_analysis.catalog.gpu_names import find_gpu
from gputop_analysis.catalog.prices import offers
from gputop_probes.record.reader import RunRecord

ENOUGH_PRICES = 3


@dataclass(frozen=True, slots=True)
class Price:
    """On-demand rent of one GPU for an hour. Prices age: the source says when they were seen."""

    gpu: str
    usd_per_hour: float
    """Median over the offers."""
    low: float
    high: float
    offers: int
    source: str


def price_of(name: str) -> Price | None:
    """The price of a GPU by the name its driver gives it; None below three offers."""
    gpu = find_gpu(name)
    return _prices().get(gpu.name) if gpu is not None else None


def run_usd_per_hour(record: RunRecord) -> float | None:
    """Cost of an hour of this run's GPUs; None where one has no price, or none is used."""
    names = [info.name for host in record.hosts.values() for info in host.state.gpus if info.ours]
    prices = [price_of(name) for name in names]
    known_usd = [price.usd_per_hour for price in prices if price is not None]
    if known_usd and len(known_usd) == len(prices):
        return sum(known_usd)
    return None


@cache
def _prices() -> dict[str, Price]:
    prices_by_gpu: dict[str, list[float]] = {}
    for offer in offers():
        if offer.on_demand_usd_per_hour is not None and not offer.marketplace:
            prices_by_gpu.setdefault(offer.gpu, []).append(offer.on_demand_usd_per_hour)
    return {
        name: Price(
            name, median(prices), min(prices), max(prices), len(prices), _source(name, prices)
        )
        for name, prices in prices_by_gpu.items()
        if len(prices) >= ENOUGH_PRICES
    }


def _source(name: str, prices: list[float]) -> str:
    return (
        f"median of {len(prices)} published on-demand prices of the {name}, "
        f"{min(prices):.2f} to {max(prices):.2f} dollars an hour, collected in 2025 and 2026"
    )
