"""How far the formula was off on published runs, and the ranges that follow for a new setup.

``vram_residuals.json`` is written by ``bench/vram_accuracy.py --tier formula --write-intervals`` as
``{source: {axes: [excess, ...]}}``: for each configuration by how much more was measured than
estimated, in percent. A user meets what differs between sources, not within one, so each source
weighs the same, however many runs it has. What no source has makes a range wider.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from gputop_analysis import data
from gputop_analysis.vram.setup import GALORE, Setup

FILE = "vram_residuals.json"
AXES = (
    "trained",
    "sharding",
    "checkpointing",
    "framework",
    "layers",
    "loss",
    "precision",
    "context",
    "scale",
)
"""What a setup is, as far as errors go; one word each, in this order."""
SHARES = (0.05, 0.25, 0.75, 0.95)
"""Of the weight of all runs below the low end, the typical low and high one, and the high end."""
STEP = 0.025
"""Relative width that the first axis without a measurement adds to either end; ``n`` of them add
``sqrt(n)`` times as much.
"""
APART = frozenset(("recipe nanotron", "model parallelism"))
"""Runs that need far more, nobody knows why (nanotron's pipelines): apart from others."""
SCALES = ((8, "one node"), (64, "some nodes"))

Residuals = Mapping[str, Mapping[str, Sequence[float]]]


class Spread(NamedTuple):
    """Ranges in percent of an estimate; the estimate itself is in both."""

    low: float
    high: float
    """Nine of ten measurements lie between; 19 of 20 below ``high``."""
    typical_low: float
    typical_high: float
    """Half of the measurements lie between."""
    uncalibrated: tuple[str, ...]
    """What of the setup no measured run had, or ``the combination``."""


def axes(setup: Setup) -> tuple[str, ...]:
    """The words of a setup in the order of ``AXES``."""
    parallel = setup.parallel
    if setup.lora and setup.lora.dora:
        trained = "DoRA"
    elif setup.optimizer in GALORE:
        trained = "GaLore"
    elif setup.quantized:
        trained = "QLoRA"
    elif setup.lora:
        trained = "LoRA"
    else:
        trained = "full training"
    if parallel.tp * parallel.pp * parallel.ep > 1:
        sharding = "model parallelism"
    else:
        alone = parallel.dp == 1 or parallel.sharding in ("none", "ddp")
        sharding = "no sharding" if alone else parallel.sharding
    kernel = setup.kernels and setup.loss == "plain"
    scale = next((name for limit, name in SCALES if parallel.world <= limit), "many nodes")
    return (
        trained,
        sharding,
        f"checkpointing {setup.checkpointing}",
        f"recipe {setup.recipe}",
        "experts" if setup.model.experts else "dense layers",
        "a loss kernel over whole logits" if kernel else f"{setup.loss} loss",
        "fp8" if setup.dtype == "fp8" else "16 or 32 bits",
        "context parallelism" if parallel.cp > 1 else "whole sequences",
        scale,
    )


def spread(words: Sequence[str], without: str = "", residuals: Residuals | None = None) -> Spread:
    """The ranges for a setup of these axes.

    Args:
        words: of ``axes``.
        without: a source that is left out, to see what its runs would have been told.
        residuals: instead of the packaged ones.
    """
    by_source = packaged() if residuals is None else residuals
    sources = {
        name: alike
        for name, runs in by_source.items()
        if name != without and (alike := _alike(runs, set(words) >= APART))
    }
    new = _uncalibrated(tuple(words), sources)
    more = STEP * math.sqrt(len(new))
    low, typical_low, typical_high, high = (
        _quantile(_weighted(sources), share) for share in SHARES
    )
    return Spread(
        min(_percent(low - more), 0.0),
        max(_percent(high + more), 0.0),
        min(_percent(typical_low), 0.0),
        max(_percent(typical_high), 0.0),
        new,
    )


def _alike(runs: Mapping[str, Sequence[float]], apart: bool) -> dict[str, Sequence[float]]:
    return {
        words: errors
        for words, errors in runs.items()
        if (set(words.split(", ")) >= APART) == apart
    }


@cache
def packaged() -> Residuals:
    """The residuals that ship with gputop."""
    return json.loads(data.read(FILE) or "{}")


def _uncalibrated(words: tuple[str, ...], sources: Residuals) -> tuple[str, ...]:
    combinations = [tuple(name.split(", ")) for runs in sources.values() for name in runs]
    calibrated = {word for names in combinations for word in names}
    new = tuple(word for word in words if word not in calibrated)
    alone = not new and words not in combinations
    return (*new, "the combination") if alone else new


def _weighted(sources: Residuals) -> list[tuple[float, float]]:
    """(Logarithm of measured over estimated, weight) of each run, in order."""
    weighted = []
    for runs in sources.values():
        errors = [error for run_errors in runs.values() for error in run_errors]
        weighted += [(math.log1p(error / 100), 1 / len(errors)) for error in errors]
    return sorted(weighted)


def _quantile(runs: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which that share of the weight lies, between the middles of two runs."""
    aim = share * sum(weight for _, weight in runs)
    below, before = 0.0, None
    for value, weight in runs:
        middle = below + weight / 2
        if middle >= aim:
            if before is None:
                return value
            at, former = before
            return former + (value - former) * (aim - at) / (middle - at)
        below, before = below + weight, (middle, value)
    return runs[-1][0] if runs else 0.0


def _percent(logarithm: float) -> float:
    return round(100 * math.expm1(logarithm), 1)
