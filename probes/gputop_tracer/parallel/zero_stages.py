"""The optimizer of a setup under ZeRO, whichever its stage."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from gputop_tracer.tracking.tracker import Tracker

from .zero import Shared, Stage1, Stage2, ranks, stage_of, whole
from .zero3 import Stage3

DEFAULT_BUCKET = 500_000_000
"""DeepSpeed's own ``reduce_bucket_size``."""


def optimizer(
    setup: Dict[str, Any],
    tracker: Tracker,
    weights: List[Any],
    repeated: float,
    make: Callable[[List[Any]], Any],
) -> Any:
    """The optimizer of a stage; ``repeated`` says how many layers one of the traced ones stands
    for.

    Raises:
        ValueError: the optimizer needs the shapes of the weights.
    """
    if setup.get("optimizer") == "muon":
        raise ValueError("Muon over ZeRO's flat partitions is not traced: use the formula tier")
    values = sum(
        weight.numel() * (repeated if tracker.places.place_of(weight)[1] >= 0 else 1.0)
        for weight in weights
    )
    shared = Shared(
        tracker,
        weights,
        round(values),
        ranks(setup),
        bucket_size(setup),
        bool(setup.get("overlap_comm")),
    )
    if stage_of(setup) == 1:
        return Stage1(shared, make)
    if stage_of(setup) == 2:
        return Stage2(shared, whole(shared, make))
    return Stage3(shared, make)


def bucket_size(setup: Dict[str, Any]) -> int:
    """Values: ``reduce_bucket_size``; 0 is ``auto``, the hidden size squared under Transformers."""
    size = int(setup.get("reduce_bucket_size", DEFAULT_BUCKET))
    return size or int(setup["model"]["hidden"]) ** 2
