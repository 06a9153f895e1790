"""Published rents of GPUs. They age, those of marketplaces within days: every offer says when it
was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gputop_analysis.catalog.gpu_names import find_gpu
from gputop_analysis.data import table


@dataclass(frozen=True, slots=True)
class Offer:
    """One published price; dollars per hour for one GPU, None where it is not offered."""

    gpu: str
    """By its name in the catalog."""
    provider: str
    instance: str
    gpus: int
    """In one instance."""
    on_demand_usd_per_hour: float | None
    spot_usd_per_hour: float | None
    marketplace: bool
    as_of: str
    source: str


@cache
def offers() -> tuple[Offer, ...]:
    """All offers of GPUs that the catalog knows."""
    known_offers = []
    for row in table("prices.csv"):
        spec = find_gpu(row["gpu"])
        if spec is not None:
            known_offers.append(_offer(spec.name, row))
    return tuple(known_offers)


def _offer(gpu: str, row: dict[str, str]) -> Offer:
    count = int(row["gpu_count"])

    def per_gpu(column: str) -> float | None:
        return float(row[column]) / count if row[column] else None

    return Offer(
        gpu=gpu,
        provider=row["provider"],
        instance=row["instance"],
        gpus=count,
        on_demand_usd_per_hour=per_gpu("on_demand_usd_per_hr"),
        spot_usd_per_hour=per_gpu("spot_usd_per_hr"),
        marketplace="marketplace" in row["as_of"],
        as_of=row["as_of"],
        source=row["source"],
    )
