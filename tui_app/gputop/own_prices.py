"""Where the user's own prices are kept: ``$XDG_DATA_HOME/gputop/prices.csv``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gputop_probes.locations import xdg_directory

if TYPE_CHECKING:
    from gputop_analysis.catalog import Offer


def path() -> Path:
    """``$XDG_DATA_HOME/gputop/prices.csv``, below ``~/.local/share`` where that is not set."""
    return xdg_directory("XDG_DATA_HOME", ".local", "share") / "prices.csv"


def load() -> list[Offer]:
    """The user's offers; none where no file was imported or it can no longer be read."""
    from gputop_analysis.catalog.own_prices import parse

    try:
        return parse(path().read_text(encoding="utf-8"), path().name)
    except (OSError, UnicodeDecodeError, ValueError):
        return []


def keep(text: str) -> Path:
    """Save a text that has been parsed before; the file is replaced whole.

    Raises:
        OSError: the folder cannot be written.
    """
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)
    return file


def usd_per_gpu_hour(name: str) -> float | None:
    """The median rent of a GPU, the user's own prices first; None where none is known."""
    from gputop_analysis.catalog.listing import listed

    return next((row.usd_per_hour for row in listed(load()) if row.spec.name == name), None)
