"""Packaged tables, read once: ``gpus.csv``, ``models.csv`` and ``prices.csv``. The catalog gives them as objects."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a packaged CSV file, as they are written."""
    return tuple(csv.DictReader(io.StringIO(files(__name__).joinpath(name).read_text("utf-8"), newline="")))
