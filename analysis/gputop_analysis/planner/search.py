"""The search: all configurations predicted, those that fit ranked, and words where none fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.catalog.params import params
from gputop_analysis.planner import intervals, memory, preference
from gputop_analysis.planner.calibrate import Calibration
from gputop_analysis.planner.cost import Cost, cost
from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Bools, Floats, Ints, Layouts
from gputop_analysis.planner.pareto import front
from gputop_analysis.planner.space import Limits, configurations, in_the_way

OBJECTIVES = ("throughput", "cost", "time", "memory")
"""Fastest step, cheapest million tokens, shortest training, most headroom."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All configurations that keep the rules, as arrays, best first where ``order`` says so."""

    job: Job
    cluster: Cluster
    layouts: Layouts
    parts: Cost
    seconds: Floats
    """Of a step, calibrated."""
    allocated_bytes: Floats
    device_bytes: Floats
    """What the driver sees, at most what the GPU offers where that is enough."""
    fits: Bools
    tight: Bools
    """With less than ``memory.HEADROOM`` to spare."""
    charged: Bools
    """Those of the tight ones that have to be worth the risk (``preference.charged_for``)."""
    order: Ints
    """Indices of those that fit, best first, the tight ones charged for it; or empty. Where none
    fits and it was asked for, of those that may.
    """
    calibration: Calibration
    objective: str = "throughput"

    @property
    def fitting(self) -> int:
        """How many fit."""
        return int(self.fits.sum())

    @property
    def tokens_per_s_per_gpu(self) -> Floats:
        return self.job.tokens / self.seconds / self.cluster.gpus

    @property
    def pareto(self) -> Ints:
        """Indices of those that fit and none beats in both step time and memory, fastest first."""
        if len(self.order):
            indices = self.order[front(self.seconds[self.order], self.allocated_bytes[self.order])]
        else:
            indices = self.order
        return indices[np.argsort(self.seconds[indices], kind="stable")]

    @property
    def pick(self) -> int:
        """The index to run: the first of ``order``, or one as fast within what predictions err
        whose model is split less. Raises IndexError where nothing fits.
        """
        if self.objective == "memory":
            return int(self.order[0])
        seconds = preference.with_copies_dearer(self.seconds, self.layouts)
        degrees = preference.split(self.layouts)
        return preference.preferred(self.order, seconds, degrees, self.charged)

    def interval(self, index: int) -> tuple[float, float]:
        """Factors on ``seconds`` that hold the truth in 80 % of cases."""
        if self.calibration.interval:
            return self.calibration.interval
        layout = self.layouts.row(index)
        if self.calibration.rows:
            return intervals.after_one_run(layout, self.cluster.gpus_per_node)
        rest_share = float(intervals.rest_share(self.parts.take([index]))[0])
        return intervals.uncalibrated(rest_share, self.never_calibrated(index))

    def never_calibrated(self, index: int) -> tuple[str, ...]:
        """What of a configuration no published run was like, in words; it widens the interval.
        Empty once a run of one's own has corrected the prediction.
        """
        if self.calibration.rows:
            return ()
        return intervals.new_axes(self.job, self.cluster, self.layouts.row(index))

    @property
    def nearest(self) -> Ints:
        """Indices of the three that come nearest to fitting, in bytes."""
        return np.argsort(self.allocated_bytes, kind="stable")[:3]

    @property
    def mfus(self) -> Floats:
        """Model FLOPs utilisation (Chowdhery et al. 2022, appendix B)."""
        return model_flops(self.job) / (
            self.seconds * self.cluster.gpus * self.cluster.device.flops(self.job.dtype)
        )

    def mfu(self, index: int) -> float:
        """Of one configuration."""
        return float(self.mfus[index])


def plan(
    job: Job,
    cluster: Cluster,
    limits: Limits | None = None,
    objective: str = "throughput",
    calibration: Calibration | None = None,
    *,
    unsure: bool = False,
) -> Plan:
    """Predict every allowed configuration and rank those that fit; with ``unsure``, where none
    does, those that may as memory estimates err (``memory.MAY_FIT``).

    Raises:
        ValueError: no configuration keeps the rules, or the objective is unknown.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"no objective is called {objective!r}; there are {', '.join(OBJECTIVES)}")
    layouts = configurations(job, cluster, limits)
    if not len(layouts):
        raise ValueError(
            f"no split of {cluster.gpus} GPUs keeps the rules for {job.model.layers} layers, "
            f"{job.model.heads} heads and a global batch of {job.global_batch}: "
            f"{in_the_way(job, cluster, limits)}"
        )
    calibration = calibration or Calibration()
    parts = calibration.with_input(cost(job, cluster, layouts), job.global_batch / layouts.dp)
    seconds = calibration.seconds(parts)
    sizes = memory.sizes(job, layouts, calibration.memory_factor)
    allocated, usable = sizes.allocated, cluster.device.usable_bytes
    fits, tight = sizes.least <= usable, sizes.device > (1 - memory.HEADROOM) * usable
    ranked = np.flatnonzero(fits)
    if unsure and not len(ranked):
        ranked = np.flatnonzero(sizes.least <= memory.MAY_FIT * usable)
    charged = preference.charged_for(tight, layouts)
    compared = preference.with_tight_dearer(seconds, charged)
    key = allocated if objective == "memory" else compared
    order = ranked[np.lexsort((allocated[ranked], key[ranked]))]
    device = np.where(fits, np.minimum(sizes.device, usable), sizes.least)
    return Plan(
        job=job,
        cluster=cluster,
        layouts=layouts,
        parts=parts,
        seconds=seconds,
        allocated_bytes=allocated,
        device_bytes=device,
        fits=fits,
        tight=tight,
        charged=charged,
        order=order,
        calibration=calibration,
        objective=objective,
    )


def cost_per_million_tokens(plan: Plan, price_per_gpu_hour: float) -> Floats:
    """In the currency of the price."""
    return price_per_gpu_hour / 3600 / plan.tokens_per_s_per_gpu * 1e6


def training_hours(plan: Plan, index: int, tokens: float) -> float:
    """Wall-clock hours for that many tokens, without restarts and evaluation."""
    return tokens / plan.job.tokens * float(plan.seconds[index]) / 3600


def scaling(
    job: Job, cluster: Cluster, counts: tuple[int, ...], limits: Limits | None = None
) -> dict[int, float]:
    """Best tokens/s per GPU by number of GPUs, same global batch; only where something fits."""
    by_count = {}
    for gpus in counts:
        try:
            solved = plan(job, cluster.but(gpus=gpus), limits)
        except ValueError:
            continue
        if len(solved.order):
            by_count[gpus] = float(solved.tokens_per_s_per_gpu[solved.pick])
    return by_count


def model_flops(job: Job) -> float:
    """Of a step: 6 N + 12 L h s a token, whole attention matrix (PaLM); 4 N if frozen."""
    counts = params(job.model)
    routed = counts["experts"] * (job.model.top_k / job.model.experts if job.model.experts else 0.0)
    active = (
        sum(counts.values())
        - counts["experts"]
        + routed
        - (0 if job.model.tied_embeddings else counts["embeddings"])
    )
    width = job.model.heads * (job.model.head_dim or job.model.hidden // max(job.model.heads, 1))
    return job.tokens * (
        (4.0 + 2.0 * job.trainable_share) * active + 12.0 * job.model.layers * width * job.seq
    )
