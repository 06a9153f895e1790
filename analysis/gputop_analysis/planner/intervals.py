"""How far the truth is from an uncalibrated prediction, by the kind of configuration."""

from __future__ import annotations

from collections.abc import Mapping

WHOLE, NODE, NODES = (0.86, 1.15), (0.87, 1.22), (0.83, 1.30)
"""Truth over prediction, 10th and 90th percentile: a model whole on each GPU, split inside a node, split in a cluster
of several nodes. Pooled over published sources, each counting alike, so that a large sweep does not rule (its runs with
a stall are outside: docs/planner_accuracy.md has the share that was inside by source)."""


def uncalibrated(layout: Mapping[str, int | bool], gpus_per_node: int) -> tuple[float, float]:
    """Factors on the prediction that hold the truth in 80 % of cases; ``layout`` has the degrees by name."""
    copy = layout["tp"] * layout["pp"] * layout["cp"]
    if copy == 1:
        return WHOLE
    return NODE if copy * layout["dp"] <= gpus_per_node else NODES
