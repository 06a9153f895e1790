"""Seconds of communication of one layer and one micro-batch, by the kind of parallelism."""

from __future__ import annotations

import numpy as np

from gputop_analysis.planner import collectives
from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Floats, Layouts
from gputop_analysis.planner.products import attention_dims

ACTIVATION_BYTES = 2.0
FP8_DISPATCH = 0.5 * (1 + 4 / 128)
"""Bytes of a token in 8 bits with a scale for each 128 values, over those in 16 (DeepEP)."""
LIMITED_ROUTERS, ROUTED_NODES = ("deepseek_v3",), 4
"""Models whose router takes experts of at most so many nodes (arXiv:2412.19437, section 2.1.2)."""


def hidden_bytes(job: Job, layouts: Layouts) -> Floats:
    """Of one micro-batch's activations between layers, on one context-parallel rank."""
    return ACTIVATION_BYTES * layouts.micro_batch * job.seq / layouts.cp * job.model.hidden


def tensor_parallel(job: Job, cluster: Cluster, layouts: Layouts) -> tuple[Floats, Floats]:
    """A layer's forward and backward: two all-reduces each (Shoeybi et al. 2019, arXiv:1909.08053,
    figure 4).

    With sequence parallelism each is an all-gather and a reduce-scatter, and the backward gathers
    the inputs of the two column-parallel products once more (Korthikanti et al. 2022,
    arXiv:2205.05198, section 4.2.2).
    """
    message = hidden_bytes(job, layouts)
    group = collectives.group(cluster, layouts.tp, 1)
    reduce, gather = (
        collectives.all_reduce(cluster, group, message),
        collectives.all_gather(cluster, group, message),
    )
    forward = np.where(layouts.sequence_parallel, 4 * gather, 2 * reduce)
    backward = np.where(layouts.sequence_parallel, 6 * gather, 2 * reduce)
    return forward, backward


def context_parallel(job: Job, cluster: Cluster, layouts: Layouts) -> tuple[Floats, Floats]:
    """A layer's forward and backward: keys and values go once round the ring, and in the backward
    their gradients too (Liu et al. 2023, arXiv:2310.01889, section 3).
    """
    width, value_width = attention_dims(job.model)
    kv_heads = np.maximum((job.model.kv_heads or job.model.heads) / layouts.tp, 1.0)
    message = (
        ACTIVATION_BYTES
        * layouts.micro_batch
        * job.seq
        / layouts.cp
        * kv_heads
        * (width + value_width)
    )
    group = collectives.group(cluster, layouts.cp, layouts.tp)
    rate_time = message * (layouts.cp - 1) / group.bytes_per_s + (layouts.cp - 1) * group.hop_s
    once = np.where(layouts.cp > 1, rate_time, 0.0)
    return once, 2 * once


def expert_parallel(job: Job, cluster: Cluster, layouts: Layouts) -> tuple[Floats, Floats]:
    """A layer's forward and backward: tokens to their experts (dispatch) and back (combine)."""
    all_bytes = hidden_bytes(job, layouts) / layouts.tp
    group = collectives.group(cluster, layouts.ep, layouts.expert_tp)
    sent = all_bytes * job.model.top_k * job.expert_imbalance
    if job.habits.dispatcher == "allgather":
        once = 2 * collectives.all_gather(cluster, group, all_bytes * layouts.ep)
    elif job.habits.dispatcher == "deepep":
        nodes = all_bytes * _nodes_of_a_token(job, group.nodes) * job.expert_imbalance
        copies = all_bytes * _different(layouts.ep, job.model.top_k) * job.expert_imbalance
        combine = collectives.all_to_all(cluster, group, copies, nodes)
        narrow = FP8_DISPATCH if job.dtype in ("fp8", "fp4") else 1.0
        once = combine + collectives.all_to_all(cluster, group, narrow * copies, narrow * nodes)
    else:
        once = 2 * collectives.all_to_all(cluster, group, sent)
    return once, once


def _nodes_of_a_token(job: Job, nodes: Floats) -> Floats:
    """Nodes besides its own that a token is sent to, at most ``ROUTED_NODES`` where the router
    limits them.
    """
    different = _different(nodes, job.model.top_k)
    limited = job.model.family in LIMITED_ROUTERS
    different = np.minimum(different, ROUTED_NODES) if limited else different
    return different * (nodes - 1) / nodes


def _different(places: Floats, choices: int) -> Floats:
    """How many of N ``places`` k ``choices`` at random are: N (1 - (1 - 1/N)^k). DeepEP sends a
    token once to each of them (``is_token_in_rank`` of its README.md).
    """
    return places * (1 - (1 - 1 / places) ** choices)


def pipeline(job: Job, cluster: Cluster, layouts: Layouts) -> Floats:
    """Activations to the next stage; each tensor-parallel rank sends a part (arXiv:2104.04473)."""
    stride = layouts.tp * layouts.cp * layouts.dp
    sync = job.habits.pipeline_sync_ms / 1e3
    stage_bytes = hidden_bytes(job, layouts)
    if not job.habits.split_pipeline_messages:
        return np.where(layouts.pp > 1, sync + collectives.send(cluster, stride, stage_bytes), 0.0)
    once = sync + collectives.send(cluster, stride, stage_bytes / layouts.tp)
    regather = collectives.all_gather(
        cluster, collectives.group(cluster, layouts.tp, 1), stage_bytes
    )
    return np.where(layouts.pp > 1, once + np.where(layouts.sequence_parallel, 0.0, regather), 0.0)
