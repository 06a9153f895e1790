"""The phases of a step, and what a rank holds at the worst moment of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gputop_analysis.vram.formula import activations, communication, dora, vision
from gputop_analysis.vram.formula.dims import Dims, Number
from gputop_analysis.vram.formula.discarded import discarded, is_by_output
from gputop_analysis.vram.formula.elementwise import choose, least, most, true
from gputop_analysis.vram.formula.habits import Habits, habits
from gputop_analysis.vram.formula.loss import final_norm, head_buffers, loss, quantized_head
from gputop_analysis.vram.formula.parts import Part, parts
from gputop_analysis.vram.formula.reserved import Blocks
from gputop_analysis.vram.formula.states import States, gradient_bytes, states
from gputop_analysis.vram.formula.updates import (
    dequantised,
    update_segments,
    update_temporaries,
    workspaces,
)

Bytes = dict[str, Number]
PASSES = ("forward", "loss", "backward", "backward end", "embedding")


@dataclass(frozen=True, slots=True)
class StepBytes:
    """One training step of a rank."""

    phases: dict[str, Bytes]
    """Bytes by category at the worst moment of each phase."""
    blocks: Blocks
    layer: Number
    """Bytes of activations that one layer keeps."""


def step(d: Dims) -> StepBytes:
    """What a rank holds in each phase.

    Within a backward pass activations fall and gradients rise by the same steps, layer by layer, so
    its worst moment is its first or its last layer.
    """
    kept_habits, rank_parts = habits(d.setup), parts(d)
    held_states = states(d, rank_parts, kept_habits)
    always = {
        "weights": held_states.weights,
        "optimizer": held_states.optimizer,
        "master_weights": held_states.master,
    }
    gathered = communication.gathered(d, rank_parts, kept_habits)
    buffers = {
        name: communication.buckets(d, rank_parts, kept_habits, name)
        for name in ("forward", "backward", "backward end", "optimizer")
    }
    reduced = communication.layer_gradients(d, rank_parts, kept_habits)
    early, late, final = gradients(d, rank_parts, held_states, kept_habits)
    passing = kept_habits.passing_gradients * sum(
        (part.count for part in rank_parts if part.trained), 0.0
    )
    all_layers, one_layer, work, tail = activations_of(d, kept_habits)
    norm, ends = d.tokens * final_norm(d, kept_habits) * d.last, loss(d, kept_habits)
    held_by_libraries = workspaces(d)
    cached = weight_casts(d, rank_parts, kept_habits, cached=True) + held_by_libraries
    casts = weight_casts(d, rank_parts, kept_habits) + held_by_libraries
    entries = d.tokens * d.last
    head_forward, head_backward = quantized_head(d)
    update = update_temporaries(d, rank_parts, kept_habits)
    norms = dora.temporaries(d, kept_habits)
    recomputed_norms = norms * (d.setup.checkpointing != "none")
    forward_logits = most(entries * ends.forward, head_forward) + head_buffers(d) * d.last
    found_phases = {
        "forward": always
        | {
            "gradients": early,
            "activations": all_layers + norm + left_by_last_step(d, kept_habits),
            "logits_loss": forward_logits,
            "communication": buffers["forward"] + gathered,
            "temporaries": cached + most(norms - forward_logits, 0.0),
        },
        "loss": always
        | {
            "gradients": early,
            "activations": all_layers + norm,
            "logits_loss": most(entries * ends.backward, head_backward),
            "communication": buffers["forward"] + gathered,
            "temporaries": casts,
        },
        "backward": always
        | {
            "gradients": first_gradients(d, early, late),
            "activations": all_layers + work,
            "communication": buffers["backward"] + gathered + reduced,
            "temporaries": casts + dequantised(d) + recomputed_norms,
        },
        "backward end": always
        | {
            "gradients": late + passing,
            "activations": tail + one_layer + work + reshard_hooks(d, kept_habits),
            "communication": buffers["backward end"] + gathered + reduced,
            "temporaries": held_by_libraries + dequantised(d),
        },
        "embedding": always
        | {
            "gradients": late + passing,
            "activations": tail,
            "communication": buffers["backward end"] + gathered,
            "temporaries": held_by_libraries + tied_gradients(d, rank_parts, kept_habits),
        },
        "optimizer": always
        | {
            "gradients": final,
            "communication": buffers["optimizer"],
            "temporaries": update + held_by_libraries,
        },
    }
    constant = sum(always.values()) + held_by_libraries
    blocks = Blocks(
        states=constant,
        activations=all_layers + norm + buffers["backward"] + gathered + reduced,
        work=work,
        loss=entries * ends.cached,
        early=early,
        rising=late - early,
        update=update_segments(d, rank_parts, kept_habits),
        passes=_highest(found_phases[name] for name in PASSES),
        pools=pools(d, rank_parts, found_phases, kept_habits, late),
    )
    return StepBytes(found_phases, blocks, one_layer)


def pools(
    d: Dims, parts: tuple[Part, ...], phases: dict[str, Bytes], habits: Habits, late: Number
) -> Number:
    """Most that the pools of all streams hold in the forward and backward pass, each at its own
    worst moment; ``late`` bytes of gradients there are after it.
    """
    if d.setup.parallel.sharding not in ("fsdp2", "hsdp"):
        return _highest(phases[name] for name in PASSES)
    own_pool = _highest({**phases[name], "gradients": 0} for name in PASSES)
    return own_pool + communication.in_other_pools(d, parts, habits, late)


def _highest(phases: Iterable[Bytes]) -> Number:
    return most(*(sum(sizes.values()) for sizes in phases))


def gradients(
    d: Dims, parts: tuple[Part, ...], states: States, habits: Habits
) -> tuple[Number, Number, Number]:
    """Bytes of gradients before and at the end of the backward pass, and at the update.

    Before it there are those of earlier micro-batches, or a buffer that is never freed; an
    optimizer inside the backward pass leaves those of one layer. Under FSDP several micro-batches'
    may wait whole, to be sharded in the last backward pass.
    """
    if d.setup.optimizer_in_backward:
        one_gradient = states.gradients * communication.at_work(d)
        return 0 * one_gradient, one_gradient, one_gradient
    several = true(d.accumulation > 1)
    if habits.waits_whole:
        whole_values = communication.whole_gradients(d, parts, habits) * several
        return whole_values, most(whole_values, states.gradients), states.gradients
    stays = 1 if habits.flat_gradients else several
    pipelined = communication.pipelined_gradients(d, parts, habits)
    early = most(states.gradients * stays, pipelined)
    if partitions_at_once(d):
        return early, early + states.gradients, states.gradients
    return early, most(states.gradients, pipelined), states.gradients


def partitions_at_once(d: Dims) -> bool:
    """Whether it is DeepSpeed's stage 2, which has a place for all gradients that this rank will
    keep of a micro-batch from the first one on (``grads_in_partition``).
    """
    return d.recipe == "deepspeed" and d.setup.parallel.sharding == "zero2"


def first_gradients(d: Dims, early: Number, late: Number) -> Number:
    """Bytes of gradients in the backward pass of the last layer."""
    if partitions_at_once(d):
        return late
    return most(early, late * communication.at_work(d))


def tied_gradients(d: Dims, parts: tuple[Part, ...], habits: Habits) -> Number:
    """Bytes of the two parts of a tied embedding's gradient, from the head and from the tokens,
    beside their sum.
    """
    if not d.model.tied_embeddings:
        return 0.0 * d.tokens
    sizes = (
        part.count * gradient_bytes(d, part, habits)
        for part in parts
        if part.name == "embeddings" and part.trained
    )
    return 2 * sum(sizes, 0.0 * d.tokens) * d.last


def per_layer(d: Dims, function: Callable[[bool], Number]) -> Number:
    """Mean over the layers of a function of whether a layer has experts."""
    if not d.model.experts:
        return function(False)
    dense = d.dense_layers / d.layers
    return dense * function(False) + (1 - dense) * function(True)


def in_flight(d: Dims) -> Number:
    """How many micro-batches' worth of its layers a pipeline stage keeps.

    One forward one backward: ``min(m, p - i)``. Interleaved: ``2 (p - i - 1) + (v - 1) p + 1``
    pieces of ``1 / v`` of the stage (Narayanan et al. 2021, section 2.2), on the first stage ``1 +
    (p - 1) / (p v)`` times as much (Korthikanti et al. 2022, section 4.2.3).
    """
    plain = least(d.accumulation, d.pp - d.stage)
    pieces = 2 * (d.pp - d.stage - 1) + (d.vpp - 1) * d.pp + 1
    interleaved = least(pieces, d.accumulation * d.vpp) / d.vpp
    return choose(d.vpp > 1, interleaved, plain)


def activations_of(d: Dims, habits: Habits) -> tuple[Number, Number, Number, Number]:
    """Bytes that all layers keep, that one does, that the backward pass of a layer needs besides,
    and that other micro-batches keep when one of them has come back to its first layer.
    """
    all_layers = per_layer(d, lambda moe: _kept(d, habits, moe))
    work = per_layer(d, lambda moe: _work(d, habits, moe))
    one_layer, flight = d.tokens * all_layers, in_flight(d)
    images = vision.kept(d)
    if d.setup.offload_activations:
        one_layer = 2 * one_layer / most(d.layers * flight, 1)
    return (
        flight * d.layers * one_layer + images,
        one_layer,
        d.tokens * work,
        (flight - 1) * d.layers * one_layer + images,
    )


def left_by_last_step(d: Dims, habits: Habits) -> Number:
    """Inputs of 4-bit layers that an old bitsandbytes keeps as attributes of its autograd node,
    which a backward pass does not clear: litgpt's loop holds the logits, and with them the graph,
    until the next forward pass is over. Where lengths vary, its longest batch is the first.
    """
    setup = d.setup
    if setup.recipe != "litgpt" or setup.lengths == "varied":
        return 0.0 * d.tokens
    recent = replace(d, setup=setup.but(bitsandbytes=""))

    def inputs(moe: bool) -> Number:
        with_them = activations.layer(d, habits, moe).whole
        return with_them - activations.layer(recent, habits, moe).whole

    return d.tokens * d.layers * per_layer(d, inputs)


def reshard_hooks(d: Dims, habits: Habits) -> Number:
    """Inputs of all idle layers, and their gradients, which FSDP1 keeps for frozen units."""
    if d.model.experts:
        return 0.0 * d.tokens
    return habits.frozen_boundary * d.tokens * d.model.hidden * (d.layers - 1)


def _kept(d: Dims, habits: Habits, moe: bool) -> Number:
    layer = activations.layer(d, habits, moe)
    if d.setup.checkpointing == "full":
        return activations.boundary(d, habits)
    if is_by_output(d):
        return layer.whole - discarded(d, habits, moe)
    if d.setup.checkpointing == "selective":
        return activations.selective(d, layer, habits)
    return layer.whole


def _work(d: Dims, habits: Habits, moe: bool) -> Number:
    """Of a layer in its backward, beyond what is kept: with checkpointing all of it, but for
    outputs that are discarded one by one.
    """
    layer = activations.layer(d, habits, moe)
    if d.setup.checkpointing == "none" or is_by_output(d):
        remade = discarded(d, habits, moe) if is_by_output(d) else 0
        return remade + most(
            layer.mlp_peak - layer.mlp, layer.norm_peak, layer.scores_peak - layer.mlp
        )
    return layer.outside - layer.entry + most(layer.mlp_peak, layer.norm_peak, layer.scores_peak)


def weight_casts(
    d: Dims, parts: tuple[Part, ...], habits: Habits, *, cached: bool = False
) -> Number:
    """16-bit copies of fp32 weights that autocast keeps: of the head, and of all linear layers that
    are not quantised or, with checkpointing, of one. Until the forward pass is over, those of all
    trained weights are ``cached`` (``cached_cast`` of ``aten/src/ATen/autocast_mode.cpp``).
    """
    if not habits.casts_weights:
        return 0.0
    if d.setup.checkpointing == "none" or (cached and activations.trains_base(d)):
        share = 1
    else:
        share = 1 / most(d.layers, 1)
    linear = 0.0 if d.setup.quantized else sum((part.count for part in parts if part.linear), 0.0)
    return d.compute * (linear * share + d.model.vocab * d.model.hidden / d.tp * d.last)
