"""How far the truth is from a prediction, by the kind of configuration."""

from __future__ import annotations

from collections.abc import Mapping

WHOLE, NODE, NODES = (0.86, 1.15), (0.87, 1.22), (0.83, 1.30)
"""Truth over prediction, 10th and 90th percentile: a model whole on each GPU, split inside a node,
split in a cluster of several nodes. Pooled over published sources, each counting alike, so that a
large sweep does not rule (its runs with a stall are outside: docs/planner_accuracy.md has the share
that was inside by source).
"""
ONE_RUN = (0.93, 1.11), (0.91, 1.12), (0.87, 1.25)
"""The same once one run of the model on as many of the same GPUs has corrected the prediction: each
published run in turn on the others of its model, the sources pooled as above, the Playbook's stalls
left out.
"""


def uncalibrated(layout: Mapping[str, int | bool], gpus_per_node: int) -> tuple[float, float]:
    """Factors on the prediction that hold the truth in 80 % of cases; ``layout`` has the degrees by
    name.
    """
    return (WHOLE, NODE, NODES)[_kind(layout, gpus_per_node)]


def after_one_run(layout: Mapping[str, int | bool], gpus_per_node: int) -> tuple[float, float]:
    """The same for a prediction that one measured run has corrected."""
    return ONE_RUN[_kind(layout, gpus_per_node)]


def _kind(layout: Mapping[str, int | bool], gpus_per_node: int) -> int:
    copy = layout["tp"] * layout["pp"] * layout["cp"]
    return 0 if copy == 1 else 1 if copy * layout["dp"] <= gpus_per_node else 2
