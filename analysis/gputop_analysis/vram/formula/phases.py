"""The phases of a step, and what a rank holds at the worst moment of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gputop_analysis.catalog.params import moe_layers
from gputop_analysis.vram.formula import activations, communication, loss
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.habits import Habits, habits
from gputop_analysis.vram.formula.parts import Part, parts
from gputop_analysis.vram.formula.states import STAGE, moment_bytes, over, states

Bytes = dict[str, Number]


def phases(d: Dims) -> dict[str, Bytes]:
    """Bytes by category at the worst moment of each phase."""
    kept, found = habits(d.setup), parts(d)
    held = states(d, found, kept)
    always = {
        "weights": held.weights,
        "optimizer": held.optimizer,
        "master_weights": held.master,
    }
    gathered = communication.gathered(d, found, kept)
    during = communication.buckets(d, found, kept)
    early = held.gradients * _gradients_before_backward(d, kept)
    layers = kept_by_layers(d, kept)
    work = working_layer(d, kept)
    steps = {
        "loss": always
        | {
            "gradients": early,
            "activations": layers + loss.hidden_at_loss(d, kept),
            "logits_loss": loss.loss_peak(d, kept),
            "communication": during + gathered,
        },
        "backward": always
        | {
            "gradients": np.maximum(early, held.gradients / np.maximum(d.layers, 1)),
            "activations": layers + work,
            "communication": during + gathered + communication.layer_gradients(d, found, kept),
        },
        "backward end": always
        | {
            "gradients": held.gradients,
            "activations": boundary_of_first(d, kept) + work,
            "communication": during + gathered + communication.layer_gradients(d, found, kept),
        },
        "optimizer": always
        | {
            "gradients": held.gradients,
            "communication": during,
            "temporaries": update_temporaries(d, found, kept),
        },
    }
    return steps


def _gradients_before_backward(d: Dims, kept: Habits) -> Number:
    """1 where gradients exist before the backward pass: kept in a buffer, or of an earlier micro-batch."""
    return 1 if kept.flat_gradients else np.asarray(np.greater(d.accumulation, 1), dtype=np.int64)


def per_layer(d: Dims, function: Callable[[bool], Number]) -> Number:
    """Mean over the layers of a function of whether a layer has experts."""
    share = moe_layers(d.model) / max(d.model.layers, 1)
    dense = function(False) if share < 1 else 0
    return (1 - share) * dense + (share * function(True) if share else 0)


def in_flight(d: Dims) -> Number:
    """Layers' worth of micro-batches that a stage holds, as a multiple of its layers.

    One forward one backward: ``min(m, p - i)``; interleaved: ``2 (p - i - 1) + (v - 1) p + 1`` pieces of ``1/v`` of the stage
    (Narayanan et al. 2021, section 2.2; Korthikanti et al. 2022, section 4.2.3: ``1 + (p - 1) / (p v)`` for the first stage).
    """
    plain = np.minimum(d.accumulation, d.pp - d.stage)
    pieces = 2 * (d.pp - d.stage - 1) + (d.vpp - 1) * d.pp + 1
    interleaved = np.minimum(pieces, d.accumulation * d.vpp) / d.vpp
    return np.where(np.asarray(d.vpp) > 1, interleaved, plain)


def kept_by_layers(d: Dims, kept: Habits) -> Number:
    """Of all layers and micro-batches in flight."""
    return in_flight(d) * d.layers * one_layer(d, kept)


def one_layer(d: Dims, kept: Habits) -> Number:
    if d.setup.checkpointing == "full":
        return activations.boundary(d, kept)
    return per_layer(d, lambda moe: activations.layer_kept(d, kept, moe))


def working_layer(d: Dims, kept: Habits) -> Number:
    """Of the layer whose backward pass runs: what it recomputes, and its gradients of activations."""
    moe = moe_layers(d.model) > 0
    extra = activations.backward_extra(d, kept, moe)
    if d.setup.checkpointing == "full":
        extra = extra + activations.layer_kept(d, kept, moe)
    return extra


def boundary_of_first(d: Dims, kept: Habits) -> Number:
    return (in_flight(d) - 1) * d.layers * one_layer(d, kept) + one_layer(d, kept)


def update_temporaries(d: Dims, found: tuple[Part, ...], kept: Habits) -> Number:
    """torch's foreach AdamW makes one tensor as large as a moment for all parameters at once (``exp_avg_sq.sqrt()``)."""
    if d.setup.optimizer != "adamw" or kept.master:
        return np.float64(0)
    sharded = STAGE[d.setup.parallel.sharding] >= 1
    return sum(
        (part.count * moment_bytes(d, part, kept) / 2 / over(d, part, sharded) for part in found if part.trained),
        np.float64(0),
    )
