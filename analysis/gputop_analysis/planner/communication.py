"""Seconds of communication of one layer and one micro-batch, by the kind of parallelism."""

from __future__ import annotations

import numpy as np

from gputop_analysis.planner import collectives
from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Floats, Layouts
from gputop_analysis.planner.products import attention_dims

ACTIVATION_BYTES = 2.0


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
    """A layer's forward and backward: tokens to their experts and back."""
    message = hidden_bytes(job, layouts) * job.model.top_k * job.expert_imbalance / layouts.tp
    group = collectives.group(cluster, layouts.ep, layouts.expert_tp)
    once = 2 * collectives.all_to_all(cluster, group, message)
    return once, once


def pipeline(job: Job, cluster: Cluster, layouts: Layouts) -> Floats:
    """Activations to the next stage; the ranks of a tensor-parallel group send a part each
    (arXiv:2104.04473, 4.1).
    """
    stride = layouts.tp * layouts.cp * layouts.dp
    sync = job.habits.pipeline_sync_ms / 1e3
    whole = hidden_bytes(job, layouts)
    if not job.habits.split_pipeline_messages:
        return np.where(layouts.pp > 1, sync + collectives.send(cluster, stride, whole), 0.0)
    once = sync + collectives.send(cluster, stride, whole / layouts.tp)
    regather = collectives.all_gather(cluster, collectives.group(cluster, layouts.tp, 1), whole)
    return np.where(layouts.pp > 1, once + np.where(layouts.sequence_parallel, 0.0, regather), 0.0)
