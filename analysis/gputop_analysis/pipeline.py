"""Pipeline parallelism: how much of a step its stages must idle, and how much they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def expected_bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle share of a stage that no schedule of this kind avoids, 0 to 1.

    (p - 1) / (m + p - 1) for GPipe and 1F1B (Huang et al. 2019, Narayanan et al. 2021); with
    ``chunks`` model parts on each stage (interleaved) the fill takes 1 / chunks as long: (p - 1) /
    (v m + p - 1).

    Raises:
        ValueError: for fewer than one stage, micro-batch or chunk.
    """
    if stages < 1 or micro_batches < 1 or chunks < 1:
        raise ValueError("stages, micro-batches and chunks must be at least 1")
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def measured_bubble(busy: Array, wall: Array) -> float:
    """Idle share of all stages together: 1 - sum(busy) / sum(wall).

    Args:
        busy: time that each stage computes in a step, any shape.
        wall: time of the step on that stage, same shape and unit.
    """
    total = float(np.sum(wall))
    return 1 - float(np.sum(busy)) / total if total > 0 else float("nan")


def micro_batches_for(stages: int, bubble: float, chunks: int = 1) -> int:
    """The fewest micro-batches whose expected bubble is at most ``bubble``."""
    needed = (stages - 1) * (1 - bubble) / (bubble * chunks)
    return max(1, int(np.ceil(needed - 1e-9)))
