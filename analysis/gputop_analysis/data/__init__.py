"""Packaged tables, read once. ``gpus.csv``: dense peaks; ``prices.csv``: what an hour of a GPU costs."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a packaged CSV file, as they are written."""
    return tuple(csv.DictReader(io.StringIO(files(__name__).joinpath(name).read_text("utf-8"), newline="")))
