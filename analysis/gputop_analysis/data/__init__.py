"""Packaged tables, read once: ``gpus.csv``, ``models.csv`` and ``prices.csv``. The catalog gives
them as objects.
"""

from __future__ import annotations

import csv
import io
import os
from functools import cache


def read(name: str) -> bytes | None:
    """A packaged file, or None. ``importlib.resources`` takes longer to load than a table."""
    try:
        with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a packaged CSV file, as they are written.

    Raises:
        FileNotFoundError: there is none of that name.
    """
    rows = read(name)
    if rows is None:
        raise FileNotFoundError(name)
    return tuple(csv.DictReader(io.StringIO(rows.decode(), newline="")))
