"""Seconds of collectives by alpha and beta, and by where the ranks of the group are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gputop_analysis.planner.hardware import (
    GPUS_PER_NODE,
    Cluster,
    gather_share,
    hop_seconds,
    hops_by_rank,
)
from gputop_analysis.planner.layout import Floats

LAUNCH_S = 12e-6
"""Of one collective's kernel, without the hops."""
LINK_HOP_S = 6e-6
"""A hop over NVLink: A100's all-reduce of 8 ranks, 79 us = launch + 14 hops of 5 us."""

MESSAGE_BYTES = 256e6
"""What one collective carries where a program reduces more, of networks on which each pays again:
the size that calib/collectives.csv was measured with.
"""
ALL_TO_ALL_SHARE = 0.89
"""All-to-all over all-gather in a node: B200, 537 and 606 GB/s (calib/collectives.csv)."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that communicate. ``stride`` is the distance of neighbours in the order of ranks."""

    size: Floats
    in_node: Floats
    """How many of them share a node."""
    nodes: Floats
    bytes_per_s: Floats
    """Of the slowest part of a ring, per rank, one way, the node's other groups active."""
    gather_bytes_per_s: Floats
    """The same of all-gather and reduce-scatter, which gain nothing from a reduction in the switch
    of a node; between nodes both have the rate of the NICs.
    """
    hop_s: Floats


def group(cluster: Cluster, size: Any, stride: Any) -> RankGroup:
    """Where ``size`` ranks at distance ``stride`` are; ranks are dealt to nodes in order.

    Groups that run over the same nodes at once share the NICs: groups of 2, 4 and 8 over two nodes
    of 8 were measured with 8.1, 16.2 and 20.8 GB/s (calib/bandwidth_galvatron.csv), that is in the
    ratio of their ranks per node.
    """
    size, stride = np.asarray(size, float), np.asarray(stride, float)
    in_node = np.clip(np.floor(cluster.gpus_per_node / stride), 1, size)
    nodes = np.ceil(size / in_node)
    alone = cluster.node_bytes_per_s * in_node / cluster.gpus_per_node
    inside = np.where(
        (in_node < cluster.gpus_per_node) & (not cluster.switched),
        _unswitched(cluster, in_node),
        _inside(cluster),
    )
    gather = inside * cluster.gather_bytes_per_s / cluster.link_bytes_per_s
    return RankGroup(
        size,
        in_node,
        nodes,
        np.where(nodes > 1, np.minimum(alone, inside), inside),
        np.where(nodes > 1, np.minimum(alone * gather_share(cluster.network), gather), gather),
        np.where(nodes > 1, hop_seconds(cluster.network), LINK_HOP_S),
    )


def _inside(cluster: Cluster) -> float:
    return cluster.link_bytes_per_s


def _unswitched(cluster: Cluster, ranks: Floats) -> Floats:
    """Without a switch few ranks use few links: V100, 2 ranks 22.6, 4 85.8, 8 136 GB/s."""
    return cluster.link_bytes_per_s * np.clip((ranks - 1) / (GPUS_PER_NODE - 1), 1 / 6, 1)


def all_reduce(
    cluster: Cluster, group: RankGroup, message: Floats, buckets: Floats | float = 1.0
) -> Floats:
    """Seconds to sum ``message`` bytes on every rank, in so many collectives one after the other.

    Between nodes by trees, whose latency is logarithmic (NCCL 2.4 and later).
    """
    inside = 2 * (np.minimum(group.in_node, group.size) - 1) * LINK_HOP_S
    hops = np.minimum(2 * np.ceil(np.log2(np.maximum(group.nodes, 2))), group.nodes)
    latency = buckets * (LAUNCH_S + inside) + _between_nodes(
        cluster, group, message, buckets * hops
    )
    moved = 2 * message * (group.size - 1) / group.size
    return _when_many(group, latency + moved / group.bytes_per_s)


def all_gather(
    cluster: Cluster, group: RankGroup, message: Floats, buckets: Floats | float = 1.0
) -> Floats:
    """Seconds until every rank has ``message`` bytes of which it held 1/size, in so many
    collectives. Reduce-scatter takes as long.
    """
    inside = (group.in_node - 1) * LINK_HOP_S
    latency = buckets * (LAUNCH_S + inside)
    latency = latency + _between_nodes(cluster, group, message, buckets * group.nodes)
    moved = message * (group.size - 1) / group.size
    return _when_many(group, latency + moved / group.gather_bytes_per_s)


def _between_nodes(cluster: Cluster, group: RankGroup, message: Floats, hops: Floats) -> Floats:
    """Seconds of latency between nodes: ``hops`` once, whatever the message; on a network that was
    seen to, one for each rank and again for every ``MESSAGE_BYTES``.
    """
    if hops_by_rank(cluster.network):
        hops = group.size * np.maximum(message / MESSAGE_BYTES, 1.0)
    return np.where(group.nodes > 1, hops * group.hop_s, 0.0)


def all_to_all(
    cluster: Cluster, group: RankGroup, message: Floats, crossing: Floats | None = None
) -> Floats:
    """Seconds until every rank has sent 1/size of its ``message`` bytes to every other, of which
    ``crossing`` bytes leave the node, to be copied on to the ranks there (left out: as many as have
    to, each to its own rank); a switch that sums has nothing to sum here.
    """
    inside = message * (group.in_node - 1) / group.size
    if crossing is None:
        crossing = message * (group.size - group.in_node) / group.size
    else:
        inside = message * (group.in_node - 1) / group.in_node
    across = cluster.node_bytes_per_s / cluster.gpus_per_node
    link = cluster.gather_bytes_per_s * ALL_TO_ALL_SHARE
    moved = np.maximum(inside / link, crossing / across)
    return _when_many(group, LAUNCH_S + np.sqrt(group.size) * group.hop_s + moved)


def send(cluster: Cluster, stride: Any, message: Floats) -> Floats:
    """Seconds for ``message`` bytes to the rank at that distance, every rank sending at once."""
    across = np.asarray(stride, float) >= cluster.gpus_per_node
    rate = np.where(across, cluster.node_bytes_per_s / cluster.gpus_per_node, _inside(cluster))
    return LAUNCH_S + np.where(across, hop_seconds(cluster.network), LINK_HOP_S) + message / rate


def _when_many(group: RankGroup, seconds: Floats) -> Floats:
    return np.where(group.size > 1, seconds, 0.0)
