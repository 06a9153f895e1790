"""Seconds of one optimizer step for every configuration, in parts that add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gputop_analysis.catalog.params import moe_layers
from gputop_analysis.planner import collectives, communication, layers, pipeline, weights
from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layers import LayerTime
from gputop_analysis.planner.layout import Floats, Layouts

OVERLAP_SLOWDOWN = 0.13
"""Compute beside communication is 1.126 times slower (calib/bandwidth_galvatron.csv)."""
LEAST_BUCKET, BUCKET_PER_RANK = 40e6, 1e6
"""Parameters whose gradients travel together: so many, and more where many ranks would make their
collectives latency-bound (Megatron-LM, ``megatron/core/distributed/distributed_data_parallel.py``).
"""
INTERLEAVED_SHARE = 0.2
"""Least exposed part of a message that an interleaved schedule sends beside a chunk."""
OPTIMIZER_BYTES = {
    "sgd": 14.0,
    "sgd-momentum": 22.0,
    "adafactor": 16.0,
    "lion": 22.0,
    "adamw-8bit": 18.0,
    "none": 0.0,
}
ADAM_BYTES = 34.0
"""Moved for one parameter of AdamW: master weight and two moments read and written (24), fp32
gradient read for the norm and the update (8), the half-precision weight written (2).
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step by part, each of the slowest stage; arrays over the configurations."""

    compute: Floats
    tensor_parallel: Floats
    context_parallel: Floats
    expert_parallel: Floats
    pipeline: Floats
    bubble: Floats
    data_parallel: Floats
    optimizer: Floats
    launch: Floats
    """Time in which the GPU waits for the CPU to issue kernels."""
    input: Floats
    """A step's wait for data: never predicted, only carried over from a measured run."""

    @property
    def seconds(self) -> Floats:
        """Of the whole step."""
        return sum((getattr(self, f.name) for f in fields(self)), np.zeros_like(self.compute))

    def take(self, index: Any) -> Cost:
        """Of the configurations at ``index`` (integers or a mask)."""
        return Cost(*(getattr(self, f.name)[index] for f in fields(self)))

    def row(self, i: int) -> dict[str, float]:
        """One configuration's parts as plain values."""
        return {f"{f.name}_s": float(getattr(self, f.name)[i]) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class _Pass:
    """One layer and one micro-batch, forward and backward with what is recomputed, by part."""

    compute: Floats
    tensor_parallel: Floats
    context_parallel: Floats
    expert_parallel: Floats
    launch: Floats
    forward: Floats
    """Seconds of the forward alone, all parts."""
    weight_gradient: Floats
    """Seconds that nothing waits for."""

    @property
    def seconds(self) -> Floats:
        return (
            self.compute
            + self.tensor_parallel
            + self.context_parallel
            + self.expert_parallel
            + self.launch
        )


def cost(job: Job, cluster: Cluster, layouts: Layouts) -> Cost:
    """Predict every configuration at once."""
    mean = _mean_layer(job, cluster, layouts)
    layer = _busiest_layer(job, cluster, layouts, mean)
    end = layers.head(job, cluster.device, layouts)
    end_s = end.forward + end.backward
    end_launch = np.maximum(end.host_forward + end.host_backward - end_s, 0)
    count, has_head = pipeline.slowest_stage(
        job.model.layers,
        layouts.pp,
        (end_s + end_launch) / layer.seconds,
        job.habits.balanced_stages,
        layouts.vpp,
    )
    micro = layouts.micro_batches(job.global_batch)
    hop = communication.pipeline(job, cluster, layouts)
    slowest = count * layer.seconds + has_head * (end_s + end_launch)
    behind = np.maximum(hop - slowest / layouts.vpp / 3, INTERLEAVED_SHARE * hop)
    exposed_hop = 2 * layouts.vpp * np.where(layouts.vpp > 1, behind, hop)
    everyone = job.model.layers * mean.seconds + end_s + end_launch
    bubble = pipeline.bubble_seconds(
        layouts.pp,
        layouts.vpp,
        everyone,
        slowest,
        weight_gradient=count * layer.weight_gradient,
        zero_bubble=layouts.zero_bubble,
        micro=micro,
    )
    bubble = np.where(layouts.pp > 1, bubble + 2 * (layouts.pp - 1) * hop, 0.0)
    data, update = _data_parallel(job, cluster, layouts, count=count, layer=layer, micro=micro)
    return Cost(
        compute=micro * (count * layer.compute + has_head * end_s),
        tensor_parallel=micro * count * layer.tensor_parallel,
        context_parallel=micro * count * layer.context_parallel,
        expert_parallel=micro * count * layer.expert_parallel,
        pipeline=micro * exposed_hop,
        bubble=bubble,
        data_parallel=data,
        optimizer=update,
        launch=micro * (count * layer.launch + has_head * end_launch),
        input=0.0 * bubble,
    )


def forward_seconds(job: Job, cluster: Cluster, layouts: Layouts) -> Floats:
    """Of a forward alone over the global batch, on one pipeline stage: what scoring takes."""
    layer = _mean_layer(job, cluster, layouts)
    head = layers.head(job, cluster.device, layouts)
    weights_held = weights.held(job.model, layouts, job.model.layers + 0.0 * layouts.tp)
    every = collectives.group(cluster, layouts.shards, layouts.tp)
    gather = np.where(
        layouts.zero == 3, collectives.all_gather(cluster, every, 2.0 * weights_held.layer), 0.0
    )
    layer_seconds = job.model.layers * np.maximum(layer.forward, gather) + head.forward
    return layouts.micro_batches(job.global_batch) * layer_seconds


def _mean_layer(job: Job, cluster: Cluster, layouts: Layouts) -> _Pass:
    """The mean of dense layers and layers with experts."""
    moes = moe_layers(job.model)
    numbers = {False: job.model.layers - moes, True: moes}
    passes = {
        moe: _pass(job, cluster, layouts, layers.layer(job, cluster.device, layouts, moe), moe)
        for moe, number in numbers.items()
        if number
    }
    if len(passes) == 1:
        return next(iter(passes.values()))
    share = moes / job.model.layers
    dense, routed = passes[False], passes[True]
    return _Pass(
        **{
            f.name: (1 - share) * getattr(dense, f.name) + share * getattr(routed, f.name)
            for f in fields(_Pass)
        }
    )


def _busiest_layer(job: Job, cluster: Cluster, layouts: Layouts, mean: _Pass) -> _Pass:
    """Mean layer of the slowest stage: with dense layers first, later stages have experts alone."""
    model = job.model
    if not (
        0 < model.first_dense_layers < model.layers and model.moe_every == 1 and moe_layers(model)
    ):
        return mean
    routed = _pass(job, cluster, layouts, layers.layer(job, cluster.device, layouts, True), True)
    return _Pass(
        **{
            f.name: np.where(layouts.pp > 1, getattr(routed, f.name), getattr(mean, f.name))
            for f in fields(_Pass)
        }
    )


def _pass(job: Job, cluster: Cluster, layouts: Layouts, piece: LayerTime, moe: bool) -> _Pass:
    tp_f, tp_b = communication.tensor_parallel(job, cluster, layouts)
    if job.habits.overlap_tensor_parallel:
        tp_f, tp_b = (
            _behind(job, tp_f, piece.forward, layouts.tp),
            _behind(job, tp_b, piece.backward, layouts.tp),
        )
    cp_f, cp_b = communication.context_parallel(job, cluster, layouts)
    cp_f, cp_b = (
        np.maximum(cp_f - piece.attention_core, 0),
        np.maximum(cp_b - 2.5 * piece.attention_core, 0),
    )
    if moe:
        ep_f, ep_b = communication.expert_parallel(job, cluster, layouts)
    else:
        ep_f, ep_b = (0.0 * cp_f, 0.0 * cp_f)
    if job.habits.overlap_expert_parallel:
        ep_f, ep_b = _hidden(ep_f, 0.9 * piece.forward), _hidden(ep_b, 0.9 * piece.backward)
    full, selective = layouts.recompute == 2, layouts.recompute == 1
    forward = piece.forward + tp_f + cp_f + ep_f
    recomputed = np.where(full, piece.forward, np.where(selective, piece.selective, 0.0))
    backward = piece.backward + tp_b + cp_b + ep_b + recomputed + full * (tp_f + cp_f + ep_f)
    held_up = (
        job.habits.pipelined_tensor_ms
        / 1e3
        * np.where((layouts.pp > 1) & (layouts.tp > 1), layouts.tp, 0)
    )
    host_forward = np.maximum(piece.host_forward, held_up / 3)
    host_backward = np.maximum(piece.host_backward, held_up * 2 / 3) + full * piece.host_forward
    launch_forward = np.maximum(host_forward - forward, 0)
    return _Pass(
        compute=piece.forward + piece.backward + recomputed,
        tensor_parallel=(1 + full) * tp_f + tp_b,
        context_parallel=(1 + full) * cp_f + cp_b,
        expert_parallel=(1 + full) * ep_f + ep_b,
        launch=launch_forward + np.maximum(host_backward - backward, 0),
        forward=forward + launch_forward,
        weight_gradient=piece.weight_gradient,
    )


def _behind(job: Job, communication_s: Floats, compute_s: Floats, ranks: Floats) -> Floats:
    """What is left of tensor-parallel communication in ``ranks`` pieces beside products."""
    share = job.habits.hidden_tensor_share or 1 - 1 / ranks
    hidden = np.minimum(communication_s * share, compute_s * 0.7)
    return communication_s - hidden + OVERLAP_SLOWDOWN * hidden


def _data_parallel(
    job: Job, cluster: Cluster, layouts: Layouts, *, count: Floats, layer: _Pass, micro: Floats
) -> tuple[Floats, Floats]:
    """Exposed gradient and parameter traffic, and the update. With pipeline stages FSDP gathers
    once a step, as the parameters stay (torchtitan's ``fsdp_reshard_after_forward`` by default).
    """
    weights_held = weights.held(job.model, layouts, count)
    share = job.trainable_share
    stride = layouts.tp
    every = collectives.group(cluster, layouts.dp * layouts.cp, stride)
    spread = layouts.ep * layouts.expert_tp
    expert = collectives.group(
        cluster, np.maximum(layouts.dp * layouts.cp * layouts.tp // spread, 1), spread
    )
    bucket = np.maximum(LEAST_BUCKET, BUCKET_PER_RANK * layouts.dp * layouts.cp)

    def all_weights(collective: Callable[..., Floats], each: float) -> Floats:
        dense = weights_held.dense * share
        seconds = collective(cluster, every, each * dense, np.ceil(dense / bucket))
        routed = weights_held.experts * share
        spread_s = collective(cluster, expert, each * routed, np.ceil(routed / bucket))
        return seconds + np.where(weights_held.experts > 0, spread_s, 0.0)

    grads = float(job.habits.gradient_bytes)
    reduce = all_weights(collectives.all_reduce, grads)
    scatter = all_weights(collectives.all_gather, grads)
    gather = all_weights(collectives.all_gather, 2.0)
    backward = count * (layer.seconds - layer.forward)
    forward = count * layer.forward
    # a rank without room for whole gradients shares each batch's
    scatters = np.where(layouts.zero == 2, micro, 1.0)
    once = np.where(
        layouts.zero == 0,
        _exposed(reduce, backward, job),
        scatters * _exposed(scatter, backward, job) + _exposed(gather, forward, job),
    )
    sharded = _fully_sharded(
        job, cluster, layouts, held=weights_held, layer=layer, passes=micro * count
    )
    sharded = sharded + _exposed(
        _between_replicas(job, cluster, layouts, weights_held), backward, job
    )
    local = (
        (weights_held.dense + weights_held.experts)
        * share
        / np.where(layouts.zero > 0, layouts.shards, 1)
    )
    rate = cluster.device.bytes_per_s * cluster.device.efficiency.memory_share
    update = local * _update_bytes(job) / rate
    return np.where((layouts.zero == 3) & (layouts.pp == 1), sharded, once), update


def _update_bytes(job: Job) -> float:
    """Moved for one parameter by its update: half of it where all has 16 bits, and no other weight
    is written.
    """
    moved = OPTIMIZER_BYTES.get(job.optimizer, ADAM_BYTES)
    return moved if job.habits.master_weights else max(moved - 2.0, 0.0) / 2


def _exposed(communication_s: Floats, window: Floats, job: Job) -> Floats:
    if job.habits.overlap_gradients:
        return _hidden(communication_s, 0.9 * window)
    return communication_s


def _hidden(communication_s: Floats, window: Floats) -> Floats:
    """What is left of communication beside ``window`` seconds of compute, which it slows."""
    hidden = np.minimum(communication_s, window)
    return communication_s - hidden + OVERLAP_SLOWDOWN * hidden


def _fully_sharded(
    job: Job,
    cluster: Cluster,
    layouts: Layouts,
    *,
    held: weights.RankParameters,
    layer: _Pass,
    passes: Floats,
) -> Floats:
    """ZeRO-3 and FSDP: each layer gathered before its forward and its backward, gradients scattered
    after it, beside the neighbour's compute (Zhao et al. 2023, arXiv:2304.11277, section 3.3).
    """
    every = collectives.group(cluster, layouts.shards, layouts.tp)
    gather = collectives.all_gather(cluster, every, 2.0 * held.layer)
    scatter = collectives.all_gather(cluster, every, 2.0 * held.layer * job.trainable_share)
    backward = layer.seconds - layer.forward
    hidden = np.minimum(gather, layer.forward) + np.minimum(gather + scatter, backward)
    return passes * (2 * gather + scatter - hidden + OVERLAP_SLOWDOWN * hidden)


def _between_replicas(
    job: Job, cluster: Cluster, layouts: Layouts, held: weights.RankParameters
) -> Floats:
    """HSDP: a rank's gradients, summed over the copies once a step (arXiv:2304.11277, 3.2.2)."""
    copies = collectives.group(cluster, layouts.replicas, layouts.tp * layouts.shards)
    own_bytes = 2.0 * (held.dense + held.experts) * job.trainable_share / layouts.shards
    return np.where(layouts.replicas > 1, collectives.all_reduce(cluster, copies, own_bytes), 0.0)
