"""How long a pipeline runs, and how much of it a stage waits."""

from __future__ import annotations

import numpy as np

from gputop_analysis.planner.layout import Bools, Floats, Ints


def bubble_seconds(
    pp: Ints,
    vpp: Ints,
    everyone: Floats | float,
    slowest: Floats | float,
    *,
    weight_gradient: Floats | float,
    zero_bubble: Bools | bool = False,
    micro: Floats | float = np.inf,
) -> Floats:
    """Seconds of a step in which the slowest stage waits for others.

    ``everyone``: one micro-batch through all stages, forward and backward; ``slowest``: the slowest
    stage's share; ``weight_gradient``: the part of ``slowest`` that nothing waits for; ``micro``:
    micro-batches, which have so many of them to fill the bubble with. 1F1B: a micro-batch once
    through the other stages, (p - 1) t for equal ones (Narayanan et al. 2021, arXiv:2104.04473,
    section 2.2); interleaving divides it by the chunks of a stage; ZB-H1 fills it with weight
    gradients, (p - 1)(tF + tB - tW), at 1F1B's peak memory (Qi et al. 2023, arXiv:2401.10241, table
    2).
    """
    other_stages = np.maximum(everyone - slowest, 0.0)
    filled = np.where(zero_bubble, np.minimum(pp - 1, micro) * weight_gradient, 0.0)
    return np.maximum(other_stages - filled, 0.0) / vpp


def slowest_stage(
    layers: int, pp: Ints, head_in_layers: Floats, balanced: bool, vpp: Ints | int = 1
) -> tuple[Floats, Floats]:
    """Layers of the slowest stage, and whether (1 or 0) it has the head, which costs
    ``head_in_layers`` layers.

    With equal stages the last has the head on top; with uneven ones it lacks a layer
    (``parallelism.split.chunk_layers``); where a framework balances, it has as many fewer as the
    head is worth.
    """
    if not balanced:
        largest = np.minimum(vpp * np.ceil(layers / (pp * vpp)), layers)
        last = np.where(largest * pp > layers, largest - 1, largest)
        with_head = (pp == 1) | (last + head_in_layers >= largest)
        return np.where(with_head, last, largest), with_head * 1.0
    largest = np.minimum(np.ceil((layers + np.floor(head_in_layers)) / pp), layers)
    last = np.maximum(layers - (pp - 1) * largest, 0)
    with_head = (pp == 1) | (last + head_in_layers >= largest)
    return np.where(with_head, last, largest), with_head * 1.0


def balanced_ends(layers: int, pp: Ints, head_in_layers: float) -> tuple[Floats, Floats]:
    """Layers of the first and of the last stage where a framework fills one stage after the other
    up to its share of all weights, with the block that goes beyond it (nanotron's ``build_model``
    in ``src/nanotron/models/base.py``).
    """
    share = (layers + head_in_layers) / pp
    first = np.minimum(np.floor(share) + 1, layers)
    before_last = np.minimum(np.floor((pp - 1) * share) + 1, layers)
    return np.where(pp > 1, first, layers), np.where(pp > 1, layers - before_last, layers)
