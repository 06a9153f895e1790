"""Which of nearly equal configurations to take: predictions err by more than their difference."""

from __future__ import annotations

import numpy as np

from gputop_analysis.planner.layout import Bools, Floats, Ints, Layouts

WORTH_COPIES = 0.02
"""HSDP is taken where it wins more than that: the same split with FSDP takes less memory."""
NEAR = 0.10
"""Predicted differences below this are not told apart: the median error of a step time (docs/planner_accuracy.md)."""


def split(layouts: Layouts) -> Ints:
    """GPUs that one copy of the model is split over."""
    return layouts.tp * layouts.pp * layouts.cp


def with_copies_dearer(seconds: Floats, layouts: Layouts) -> Floats:
    """What is compared: copies have to be worth their memory."""
    return seconds * np.where(layouts.replicas > 1, 1 + WORTH_COPIES, 1.0)


def preferred(candidates: Ints, seconds: Floats, split: Ints, tight: Bools) -> int:
    """Of ``candidates`` (indices) the one to take: among those within ``NEAR`` of the fastest the one whose model is
    split least, then the fastest. ``tight`` ones are taken only where all are.

    Narayanan et al. 2021 (arXiv:2104.04473, takeaways 1 and 2) split a model as little as memory allows; what a split
    costs on a real cluster (stages that wait, links that are shared) is also what predictions miss most.
    """
    roomy = candidates[~tight[candidates]]
    able = roomy if len(roomy) else candidates
    near = able[seconds[able] <= seconds[able].min() * (1 + NEAR)]
    return int(near[np.lexsort((seconds[near], split[near]))[0]])
