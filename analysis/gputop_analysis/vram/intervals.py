"""How far an estimate may be off: from the errors that each tier made on published measurements.

The formula's are in ``residuals``, source by source. Of traces and profiles, measured on few
sources: ``vram_intervals.json`` is written by ``bench/vram_accuracy.py --write-intervals`` as
``{tier: {kind: [lo_pct, hi_pct, n]}}``: the 5th and 95th percentile of (measured - estimated) /
estimated, and the number of runs. They are runs whose reserved memory or device total was measured;
where a kind has fewer than ``ENOUGH`` of these, also those by what was allocated. A run that
measured less than the weights, gradients and states that it names says something else than it
measured, and does not count.
"""

from __future__ import annotations

import json
from functools import cache

from gputop_analysis import data
from gputop_analysis.catalog.other_kinds import takes_tokens
from gputop_analysis.vram.residuals import axes, spread
from gputop_analysis.vram.setup import Setup

ENOUGH = 5
"""Runs below which a kind says too little, and all kinds together speak for it."""
SURE = 19
"""Runs whose least and greatest hold nine of ten of all others on average, (n - 1) / (n + 1)."""
LEAST = 3.0
"""Least percent to either side where fewer runs speak, often alike and of one source."""
UNKNOWN = (-30.0, 30.0)
"""Where a tier was compared with few runs or none: what other estimators are off by."""
PICTURES = (-30.0, 50.0)
"""The same of networks that take no tokens, whose traces leave out the workspaces of convolutions:
eight published trainings (ResNet-50, Swin-T, DiT) measured 4 to 53 % more.
"""


def kind(setup: Setup) -> str:
    """The kind of case: what is trained, and on how many GPUs."""
    if setup.quantized:
        trained = "qlora"
    elif setup.lora:
        trained = "lora"
    else:
        trained = "full"
    parallel = setup.parallel
    if parallel.tp * parallel.pp * parallel.cp * parallel.ep > 1:
        return f"{trained} model-parallel"
    if parallel.dp > 1 and parallel.sharding not in ("none", "ddp"):
        return f"{trained} sharded"
    return trained


def case(setup: Setup) -> str:
    """The kind, apart where a kernel's loss is over whole logits: these need more, unexplained."""
    apart = setup.kernels and setup.loss == "plain"
    if apart:
        return f"{kind(setup)}, loss kernel over whole logits"
    return kind(setup)


def interval(setup: Setup, tier: str) -> tuple[float, float]:
    """(low, high) in percent of the estimate, between which nine of ten measurements lay; the
    estimate is in it.

    Where they were few, it is never narrower than ``LEAST``.
    """
    if tier == "formula":
        errors = spread(axes(setup))
        return errors.low, errors.high
    if not takes_tokens(setup.model.family):  # the packaged errors are those of language models
        return PICTURES
    rows = _table().get(tier, {})
    for name in (case(setup), kind(setup), "all"):
        low, high, count = rows.get(name, (0.0, 0.0, 0))
        if count >= ENOUGH:
            floor = 0.0 if count >= SURE else LEAST
            return min(float(low), -floor), max(float(high), floor)
    return UNKNOWN


@cache
def _table() -> dict[str, dict[str, tuple[float, float, int]]]:
    packaged = data.read("vram_intervals.json")
    return json.loads(packaged) if packaged else {}
