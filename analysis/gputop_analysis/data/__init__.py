"""Packaged tables, read once. ``gpus.csv``: dense peaks; ``prices.csv``: what an hour of a GPU costs."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a packaged CSV file, as they are written."""
    with files(__name__).joinpath(name).open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))
