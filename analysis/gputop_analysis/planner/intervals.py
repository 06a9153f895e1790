"""How far truth is from a prediction: by what the step is spent on and never calibrated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache
from math import exp, sqrt

from gputop_analysis.data import table
from gputop_analysis.planner.cost import Cost
from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Floats

Z_80 = 1.2816
"""Of a normal distribution whose middle 80 % is meant."""
COMPUTE_LOG_SD = 0.12
"""Error of what the GPU computes, as a standard deviation of its logarithm: with 0.08, which the
sources in sight ask for, the range held 67 % of nine that came last, with this 74 %; 78 % in the
mean over these and the older seven, what was fitted on each taken away (docs/accuracy.md).
"""
REST_LOG_SD = 0.25
"""The same of all else: links, bubbles, waits for the CPU."""
NEW_LOG_SD = 0.08
"""More for each axis that published runs have not calibrated."""
NEW_WORK = ("experts", "context parallelism")
NEW_WORK_LOG_SD = 0.25
"""More for each of these that they have not: on two sources that came last (torchtitan's and
Megatron-Bridge's published tables) runs with experts were off by 0.29 and those with context
parallelism by 0.39, the others by 0.16, as roots of mean squares of the logarithm.
"""
NEW_CHIP_LOG_SD = 0.25
"""More for an architecture that they have not: what large products reach of the peak is between
0.48 and 0.77 on those that they have (calib/devices.csv).
"""
NEW_NETWORK_LOG_SD = 0.45
"""More of all that the GPU does not compute, on a network between nodes that they have not: hops
take 9 to 32 us on those that they have, and gathers 0.48 to 0.85 of the rated bandwidth
(calib/networks.csv); the mean of half these ranges in logarithms.
"""
ENOUGH_RUNS = 20
"""Published runs that calibrate an axis."""
_CHIPS = "chips like "
_CUT = _CHIPS + "GeForce or H20, with tensor cores cut down"
_NETWORKS = "nodes over "
ONE_RUN = (0.93, 1.11), (0.91, 1.12), (0.87, 1.25)
"""Truth over prediction, 10th and 90th percentile, once one run of the model on as many of the same
GPUs has corrected it: a model whole on each GPU, split inside a node, split in a cluster. Each
published run in turn on the others of its model, the sources pooled, the Playbook's stalls left
out.
"""
SCALES = (8, 64, 512, 4096)
"""GPUs up to which runs count as of one scale."""
RESIDUALS = "calib/planner_residuals.csv"


def uncalibrated(rest: float, new: Collection[str] = ()) -> tuple[float, float]:
    """Factors on the prediction that hold the truth in 80 % of cases, where ``rest`` is the share
    of the step that is not compute and ``new`` are the axes that nothing has calibrated.

    Errors of compute, of the rest and of each axis are independent and add up as squares.
    """
    chips = sum(axis.startswith(_CHIPS) for axis in new)
    networks = sum(axis.startswith(_NETWORKS) for axis in new)
    work = sum(axis in NEW_WORK for axis in new)
    other_axes = len(new) - chips - networks - work
    variance = chips * NEW_CHIP_LOG_SD**2 + work * NEW_WORK_LOG_SD**2 + other_axes * NEW_LOG_SD**2
    rest_variance = REST_LOG_SD**2 + networks * NEW_NETWORK_LOG_SD**2
    sd = sqrt(COMPUTE_LOG_SD**2 + rest**2 * rest_variance + variance)
    return exp(-Z_80 * sd), exp(Z_80 * sd)


def after_one_run(layout: Mapping[str, int | bool], gpus_per_node: int) -> tuple[float, float]:
    """The same for a prediction that one measured run has corrected."""
    copy = layout["tp"] * layout["pp"] * layout["cp"]
    if copy == 1:
        place_kind = 0
    elif copy * layout["dp"] <= gpus_per_node:
        place_kind = 1
    else:
        place_kind = 2
    return ONE_RUN[place_kind]


def rest_share(parts: Cost) -> Floats:
    """Share of each step that the GPU does not compute in, 0 to 1."""
    return 1 - (parts.compute + parts.optimizer) / parts.seconds


def axes(job: Job, cluster: Cluster, layout: Mapping[str, int | bool]) -> tuple[str, ...]:
    """What a published run has to have in common with a prediction to say something of it."""
    precision = "16-bit" if job.dtype in ("bf16", "fp16") else job.dtype
    architecture = cluster.device.spec.architecture
    names = [
        f"{_CHIPS}{architecture}",
        f"{architecture} in {precision}",
        job.framework or "no framework named",
        _scale(cluster.gpus),
    ]
    if cluster.gpus > cluster.gpus_per_node:
        names += [f"{_NETWORKS}{cluster.network}"]
    names += [_CUT] if cluster.device.is_cut else []
    names += ["experts"] if job.model.experts else []
    names += ["context parallelism"] if layout["cp"] > 1 else []
    return tuple(names)


def new_axes(job: Job, cluster: Cluster, layout: Mapping[str, int | bool]) -> tuple[str, ...]:
    """Of ``axes`` those that published runs have not calibrated."""
    return not_in(axes(job, cluster, layout), calibrated())


def not_in(found: tuple[str, ...], known: Collection[str]) -> tuple[str, ...]:
    """Those of a prediction's axes that are not ``known``; a new chip's precision adds nothing."""
    new = tuple(axis for axis in found if axis not in known)
    return tuple(axis for axis in new if axis != found[1] or found[0] not in new)


@cache
def calibrated(without: str = "") -> frozenset[str]:
    """Axes of enough published runs to compare with; ``without`` leaves a source out."""
    counts = Counter(
        axis
        for row in table(RESIDUALS)
        if row["source"] != without
        for axis in row["axes"].split("; ")
    )
    return frozenset(axis for axis, count in counts.items() if count >= ENOUGH_RUNS)


def _scale(gpus: int) -> str:
    scale = next((count for count in SCALES if gpus <= count), None)
    if scale:
        return f"up to {scale:,} GPUs"
    return f"more than {SCALES[-1]:,} GPUs"
