"""Which of nearly equal configurations to take: predictions err by more than their difference."""

from __future__ import annotations

import numpy as np

from gputop_analysis.planner.layout import Bools, Floats, Ints, Layouts

WORTH_COPIES = 0.02
"""HSDP is taken where it wins more than that: the same split with FSDP takes less memory."""
TIGHT_CHARGE = 0.15
"""Share of the step that a configuration with little memory to spare is charged: about one in ten
of those does not run, and an allocator that has to release and ask again slows the step.
"""
CHOSEN = ("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch", "zero", "replicas")
"""Fields of a split that somebody who describes a run has given."""
NEAR = 0.08
"""Predictions closer than this are alike: a step time's median error (docs/planner_accuracy.md)."""


def split(layouts: Layouts) -> Ints:
    """GPUs that one copy of the model is split over."""
    return layouts.tp * layouts.pp * layouts.cp


def charged_for(tight: Bools, layouts: Layouts) -> Bools:
    """Which of ``tight`` are charged: none where all configurations are one split, which somebody
    runs and nobody seeks. Tuned runs recompute nothing unless nothing else fits.
    """
    is_one_split = all(len(set(getattr(layouts, name).tolist())) == 1 for name in CHOSEN)
    return tight & (not is_one_split)


def with_copies_dearer(seconds: Floats, layouts: Layouts) -> Floats:
    """What is compared: copies have to be worth their memory."""
    return seconds * np.where(layouts.replicas > 1, 1 + WORTH_COPIES, 1.0)


def with_tight_dearer(seconds: Floats, tight: Bools) -> Floats:
    """What is compared: a configuration that nearly fills the GPU has to be worth the risk."""
    return seconds * np.where(tight, 1 + TIGHT_CHARGE, 1.0)


def preferred(candidates: Ints, seconds: Floats, split: Ints, tight: Bools) -> int:
    """Of ``candidates`` (indices) the one to take: among those within ``NEAR`` of the fastest the
    one whose model is split least, then the fastest. ``tight`` ones are charged for it.

    Narayanan et al. 2021 (arXiv:2104.04473, takeaways 1 and 2) split a model as little as memory
    allows; what a split costs on a real cluster (stages that wait, links that are shared) is also
    what predictions miss most.
    """
    seconds = with_tight_dearer(seconds, tight)
    near = candidates[seconds[candidates] <= seconds[candidates].min() * (1 + NEAR)]
    return int(near[np.lexsort((seconds[near], split[near]))[0]])
