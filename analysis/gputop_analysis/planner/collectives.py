"""Seconds of collectives by alpha and beta, and by where the ranks of the group are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gputop_analysis.data import table
from gputop_analysis.planner.hardware import Cluster, hop_seconds, scales_as_measured
from gputop_analysis.planner.layout import Floats

LAUNCH_S = 12e-6
"""Of one collective's kernel, without the hops."""
LINK_HOP_S = 6e-6
"""One hop over NVLink: A100's all-reduce of 8 ranks takes 79 us = launch + 14 hops of about 5 us (calib table)."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate. ``stride`` is the distance between neighbours in the order of ranks."""

    size: Floats
    in_node: Floats
    """How many of them share a node."""
    nodes: Floats
    bytes_per_s: Floats
    """Of the slowest part of a ring, per rank, one way, with the other groups of the node active."""
    hop_s: Floats


def group(cluster: Cluster, size: Any, stride: Any) -> Group:
    """Where ``size`` ranks at distance ``stride`` are; ranks are dealt to nodes in order.

    Groups that run over the same nodes at once share the NICs: groups of 2, 4 and 8 over two nodes of 8 were measured
    with 8.1, 16.2 and 20.8 GB/s (calib/bandwidth_galvatron.csv), that is in the ratio of their ranks per node.
    """
    size, stride = np.asarray(size, float), np.asarray(stride, float)
    in_node = np.clip(np.floor(cluster.gpus_per_node / stride), 1, size)
    nodes = np.ceil(size / in_node)
    alone = cluster.node_bytes_per_s * in_node / cluster.gpus_per_node
    inside = np.where(
        (in_node < cluster.gpus_per_node) & (not cluster.switched), _unswitched(cluster, in_node), _inside(cluster)
    )
    across = np.minimum(alone, inside)
    return Group(
        size,
        in_node,
        nodes,
        np.where(nodes > 1, across, inside),
        np.where(nodes > 1, hop_seconds(cluster.network), LINK_HOP_S),
    )


def _inside(cluster: Cluster) -> float:
    return cluster.link_bytes_per_s


def _unswitched(cluster: Cluster, ranks: Floats) -> Floats:
    """Without a switch a ring of few ranks uses few of the links: V100, 2 ranks 22.6, 4 85.8, 8 136 GB/s measured."""
    return cluster.link_bytes_per_s * np.clip(ranks / cluster.gpus_per_node, 1 / 6, 1)


def all_reduce(cluster: Cluster, group: Group, message: Floats) -> Floats:
    """Seconds to sum ``message`` bytes on every rank; a ring inside a node, a tree between nodes for the latency."""
    hops = 2 * (np.minimum(group.in_node, group.size) - 1) * LINK_HOP_S + 2 * np.log2(group.nodes) * group.hop_s
    moved = 2 * message * (group.size - 1) / group.size
    return _when_many(group, LAUNCH_S + hops + moved / _rate(cluster, group, "all_reduce"))


def all_gather(cluster: Cluster, group: Group, message: Floats) -> Floats:
    """Seconds until every rank has ``message`` bytes of which it held 1/size; a ring. Reduce-scatter takes as long."""
    hops = (group.size - group.nodes) * LINK_HOP_S + np.where(group.nodes > 1, group.size * group.hop_s, 0)
    moved = message * (group.size - 1) / group.size
    return _when_many(group, LAUNCH_S + hops + moved / _rate(cluster, group, "all_gather"))


def all_to_all(cluster: Cluster, group: Group, message: Floats) -> Floats:
    """Seconds until every rank has sent 1/size of its ``message`` bytes to every other."""
    outside = (group.size - group.in_node) / group.size
    inside = (group.in_node - 1) / group.size
    across = cluster.node_bytes_per_s / cluster.gpus_per_node
    moved = np.maximum(message * inside / _inside(cluster), message * outside / across)
    return _when_many(group, LAUNCH_S + np.sqrt(group.size) * group.hop_s + moved)


def send(cluster: Cluster, stride: Any, message: Floats) -> Floats:
    """Seconds for ``message`` bytes to the rank at that distance, every rank sending at once."""
    across = np.asarray(stride, float) >= cluster.gpus_per_node
    rate = np.where(across, cluster.node_bytes_per_s / cluster.gpus_per_node, _inside(cluster))
    return LAUNCH_S + np.where(across, hop_seconds(cluster.network), LINK_HOP_S) + message / rate


def _when_many(group: Group, seconds: Floats) -> Floats:
    return np.where(group.size > 1, seconds, 0.0)


def _rate(cluster: Cluster, group: Group, kind: str) -> Floats:
    if not scales_as_measured(cluster.network):
        return group.bytes_per_s
    nodes, share = _measured_share(kind)
    return group.bytes_per_s * np.where(group.nodes > 1, np.interp(np.log2(group.nodes), nodes, share), 1.0)


@cache
def _measured_share(kind: str) -> tuple[Floats, Floats]:
    """log2(nodes) and the bandwidth there over that of two nodes' all-reduce (Ultra-Scale Playbook, 256 MB)."""
    rows = [
        (float(row["nodes"]), float(row["bandwidth_GBps"]))
        for row in table("calib/collectives.csv")
        if row["gpu"] == "H100-SXM" and row["op"] == kind and float(row["nodes"]) > 1
    ]
    best = max(
        float(row["bandwidth_GBps"])
        for row in table("calib/collectives.csv")
        if row["gpu"] == "H100-SXM" and row["op"] == "all_reduce" and row["nodes"] == "2"
    )
    found = np.array(rows)
    return np.log2(found[:, 0]), found[:, 1] / best
