"""The user's own prices: a CSV file with the columns that they have, read into offers."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from gputop_analysis.catalog.gpu_names import gpu
from gputop_analysis.catalog.prices import Offer

COLUMNS = (
    "gpu, usd_per_hour (one GPU, or the instance with gpu_count); also provider, "
    "instance, spot_usd_per_hour, as_of"
)
_RENT = (
    "usd_per_hour",
    "on_demand_usd_per_hr",
    "on_demand_usd_per_hour",
    "price",
    "price_per_hour",
)
_SPOT = ("spot_usd_per_hour", "spot_usd_per_hr", "spot")


def parse(text: str, name: str = "prices.csv") -> list[Offer]:
    """All offers of a CSV text.

    Raises:
        ValueError: a column is missing or a row cannot be read; the message names the line.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [column.strip().lower() for column in reader.fieldnames or ()]
    if "gpu" not in columns or not set(_RENT) & set(columns):
        raise ValueError(f"{name}: needs the columns {COLUMNS}")
    rows = [_stripped(row) for row in reader]
    offers = [
        _offer(row, f"{name}, line {number}")
        for number, row in enumerate(rows, 2)
        if any(row.values())
    ]
    if not offers:
        raise ValueError(f"{name}: no price in it")
    return offers


def _stripped(row: dict[str | Any, str | Any]) -> dict[str, str]:
    """Texts without blanks around them, by column in lower case."""
    return {(column or "").strip().lower(): (text or "").strip() for column, text in row.items()}


def _offer(row: dict[str, str], where: str) -> Offer:
    try:
        spec = gpu(row["gpu"])
    except LookupError as error:
        raise ValueError(f"{where}: {error.args[0]}") from None
    count = _number(row.get("gpu_count") or "1", where)
    if count < 1:
        raise ValueError(f"{where}: gpu_count must be at least 1")
    rent = _first(row, _RENT, where, count)
    spot = _first(row, _SPOT, where, count)
    if rent is None and spot is None:
        raise ValueError(f"{where}: no price")
    return Offer(
        gpu=spec.name,
        provider=row.get("provider", ""),
        instance=row.get("instance", ""),
        gpus=int(count),
        on_demand_usd_per_hour=rent,
        spot_usd_per_hour=spot,
        marketplace=False,
        as_of=row.get("as_of", ""),
        source=where,
    )


def _first(row: dict[str, str], names: tuple[str, ...], where: str, count: float) -> float | None:
    value = next((row[name] for name in names if row.get(name)), "")
    return _number(value, where) / count if value else None


def _number(text: str, where: str) -> float:
    try:
        value = float(text.lstrip("$").replace(",", ""))
    except ValueError:
        raise ValueError(f"{where}: {text!r} is no number") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{where}: {text} is no price")
    return value
