"""Samples of a log of GPUs: numbers by GPU and field."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence

SAMPLES_AT_MOST = 2_000_000
"""Lines of a log that are read."""
FIELDS = ("utilization", "clock", "power", "temperature", "memory", "heat", "power limit")
"""Percent, MHz, W, degrees Celsius, MiB; and 1 where heat, or the power limit, lowered the clock, 0
where it did not.
"""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?", re.IGNORECASE)
_GPUS_AT_MOST = 4096
_LIMITS = {"utilization": (0.0, 100.0), "temperature": (-100.0, 200.0)}
"""What can be; a counter may have the title of a share."""

Samples = dict[str, dict[str, "array[float]"]]
"""By GPU and field; a sample that lacks a field has NaN there."""


def add(samples: Samples, gpu: str, columns: Mapping[str, int], row: Sequence[str]) -> None:
    """Add what a row's cells tell of a GPU; ``columns`` has the place of each field."""
    texts = {name: row[position] for name, position in columns.items() if position < len(row)}
    add_told(samples, gpu, texts)


def add_told(samples: Samples, gpu: str, texts: Mapping[str, str]) -> None:
    """Add one sample of a GPU, as text by field."""
    if gpu not in samples and len(samples) >= _GPUS_AT_MOST:
        return
    fields = samples.setdefault(gpu, {name: array("d") for name in FIELDS})
    for name, values in fields.items():
        match = NUMBER.match(texts.get(name, "").strip())
        number = float(match[0]) if match else math.nan
        low, high = _LIMITS.get(name, (-math.inf, math.inf))
        values.append(number if math.isfinite(number) and low <= number <= high else math.nan)
