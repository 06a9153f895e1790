"""Ranks against each other: one that is always slow, or slowness that goes round.

The slow rank is the one that waits least for the others. What it costs is the others' wait less its own, and the cause
is the phase in which it takes longer than they do. Comparing step times would say nothing, since all ranks of a
synchronous run step together, and comparing backward times would name the wrong one, since the wait is inside them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.findings.registry import CATALOGUE, Spec, finding
from gputop_analysis.findings.shares import ENOUGH_STEPS
from gputop_analysis.findings.sites import top_site
from gputop_analysis.hardware import run_wait_share
from gputop_analysis.model import Finding
from gputop_analysis.series import RankSeries
from gputop_analysis.stats import Interval, block_bootstrap, block_length, block_permutation
from gputop_analysis.view import Array, RunView, once_per_view
from gputop_analysis.waits import Waits, waits

MIN_EFFECT_MS, MIN_EFFECT_SHARE = 2.0, 0.03
SIGNIFICANCE = 0.01
SECOND_CAUSE = 0.25
"""A phase whose excess is a quarter of the largest one belongs to the cause: a slow device is slow in all of them."""

CAUSE_OF_PHASE = {
    "backward": "CR01",
    "forward": "CR02",
    "data": "CR03",
    "h2d": "CR03",
    "optimizer": "CR04",
    "other": "CR04",
}
_MASKED = ("IN01", "IN02", "IN04", "HO03", "HO04", "HO06", "HO07", "HO08", "CR05")


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for."""

    rank: int
    cost_ms: Interval
    wall_ms: float
    p: float
    phase: str
    excess_ms: dict[str, float]
    """By phase: its time less the median of the other ranks."""
    waits: Waits

    @property
    def recoverable_ms(self) -> Interval:
        """What mending the cause wins back: no more than the others wait, and no more than the rank is longer at it.

        The others also wait for what its lateness itself makes slower, such as sums that no longer overlap.
        """
        largest = self.excess_ms[self.phase]
        if largest <= 0:
            return self.cost_ms
        causes = sum(ms for ms in self.excess_ms.values() if ms >= SECOND_CAUSE * largest)
        scale = min(1.0, causes / self.cost_ms.value)
        return Interval(*(scale * ms for ms in self.cost_ms))


@once_per_view
def straggler(view: RunView) -> Straggler | None:
    """The persistently slow rank, if there is one beyond doubt."""
    waited, common = waits(view), view.common
    if waited is None or common is None:
        return None
    culprit = int(np.argmin(waited.ms.mean(axis=0)))
    others = np.delete(waited.ms, culprit, axis=1)
    lead = np.median(others, axis=1) - waited.ms[:, culprit]
    block = block_length(lead)
    cost = block_bootstrap(lead, np.ones(len(lead)), block)
    wall_ms = float(common.per_step_ms("wall_ns").mean())
    if not cost.low >= max(MIN_EFFECT_MS, MIN_EFFECT_SHARE * wall_ms):
        return None
    p = block_permutation(-waited.ms, block)
    if p > SIGNIFICANCE:
        return None
    excess = _excess(view, waited, culprit)
    phase = max(excess, key=lambda name: excess[name])
    return Straggler(common.ranks[culprit], cost, wall_ms, p, phase, excess, waited)


def _excess(view: RunView, waited: Waits, culprit: int) -> dict[str, float]:
    assert view.common is not None
    excess = {}
    for phase in CAUSE_OF_PHASE:
        if phase == "backward":
            times = waited.backward_compute_ms
            if times is None:
                times = view.common.per_step_ms("backward_ns")
        else:
            times = view.common.per_step_ms(f"{phase}_ns")
        means = times.mean(axis=0)
        excess[phase] = float(means[culprit] - np.median(np.delete(means, culprit)))
    return excess


def _straggler_with(view: RunView, spec: Spec, advice: str) -> Finding | None:
    found = straggler(view)
    if found is None or CAUSE_OF_PHASE[found.phase] != spec.id:
        return None
    cost, site = found.cost_ms, None
    name = {"other": "host code", "data": "data loading", "h2d": "the copy of the batch"}.get(found.phase, found.phase)
    if found.phase in ("other", "data", "forward"):
        site = top_site(view, found.phase, rank=found.rank)
    mine = found.waits.ms.mean(axis=0)[found.waits.ranks.index(found.rank)]
    theirs = float(np.median(np.delete(found.waits.ms.mean(axis=0), found.waits.ranks.index(found.rank))))
    host = f" on {view.host_of(found.rank)}" if len(view.record.hosts) > 1 else ""
    return spec.make(
        "high" if cost.low > 0.10 * found.wall_ms else "medium",
        f"rank {found.rank} is slow in {name}: the others wait {cost.value:.1f} ms a step",
        f"rank {found.rank}{host} waits {mine:.1f} ms a step for the others, they wait {theirs:.1f} ms for it "
        f"({found.waits.source}, {len(found.waits.ms):,} steps or groups of steps, p = {found.p:.3g}); it takes "
        f"{found.excess_ms[found.phase]:.1f} ms longer than the median rank in {name}"
        + (f", most often at {site}" if site else ""),
        advice.format(rank=found.rank, at=f" ({site.site})" if site else "", host=view.host_of(found.rank)),
        rank=found.rank,
        host=view.host_of(found.rank) or None,
        site=site.site if site else None,
        confidence=float(1 - found.p),
        recoverable_ms_per_step=found.recoverable_ms.value,
        interval_ms_per_step=(found.recoverable_ms.low, found.recoverable_ms.high),
    )


_TRIGGER = (
    "waits least for the others, which wait at least 3 % of the step and 2 ms for it (block permutation p <= 0.01)"
)


@finding(
    id="CR01",
    name="straggler: backward",
    family="ranks",
    cause="straggler",
    trigger=f"a rank {_TRIGGER}, and its backward takes longer",
    fix="look at that rank's device: clocks, temperature, another process on it",
    explains=_MASKED,
)
def slow_backward(view: RunView, spec: Spec) -> Finding | None:
    """One rank computes its gradients more slowly."""
    return _straggler_with(
        view,
        spec,
        "look at what differs on rank {rank} ({host}): clocks and temperature of its GPU, another process on it, "
        "CPU affinity, or more work in its part of the model",
    )


@finding(
    id="CR02",
    name="straggler: forward",
    family="ranks",
    cause="straggler",
    trigger=f"a rank {_TRIGGER}, and its forward takes longer",
    fix="look at what that rank does in forward, and at its device",
    explains=_MASKED,
)
def slow_forward(view: RunView, spec: Spec) -> Finding | None:
    """One rank takes longer in forward."""
    return _straggler_with(
        view, spec, "look at what rank {rank} does in forward{at}: longer inputs, host code, a slower device"
    )


@finding(
    id="CR03",
    name="straggler: input",
    family="ranks",
    cause="straggler",
    trigger=f"a rank {_TRIGGER}, and its data wait is longer",
    fix="look at that rank's shard, its storage and its workers",
    explains=_MASKED,
)
def slow_input(view: RunView, spec: Spec) -> Finding | None:
    """One rank gets its batches late."""
    return _straggler_with(
        view, spec, "look at the data of rank {rank}{at}: its shard, where that is stored, its num_workers"
    )


@finding(
    id="CR04",
    name="straggler: host",
    family="ranks",
    cause="straggler",
    trigger=f"a rank {_TRIGGER}, and its optimizer or the code around its step takes longer",
    fix="take work that only one rank does out of the loop",
    explains=_MASKED,
)
def slow_host(view: RunView, spec: Spec) -> Finding | None:
    """One rank does more around its step: logging, metrics, a slower optimizer."""
    return _straggler_with(
        view, spec, "rank {rank} does work in its loop that the others do not{at}: do it less often or elsewhere"
    )


@finding(
    id="CR05",
    name="rotating imbalance",
    family="ranks",
    cause="straggler",
    trigger="the slowest rank of each step takes 5 % longer than the median rank, but it is not always the same",
    fix="batches of equal length: group by length, pack, or balance tokens over the ranks",
)
def rotating_imbalance(view: RunView, spec: Spec) -> Finding | None:
    """Batches differ in length, so that in each step all ranks wait for another one."""
    by_step = _compute_by_step(view) if straggler(view) is None else None
    if by_step is None:
        return None
    compute, tokens = by_step
    slowest, middle, mean = compute.max(axis=1), np.median(compute, axis=1), compute.mean(axis=1)
    ratio = block_bootstrap(slowest, middle)
    lost = block_bootstrap(slowest - mean, np.ones(len(mean)))
    follows = _correlation(compute, tokens)
    by_length = follows is not None and follows > 0.5
    needed = 1.05 if by_length else 1.15
    if not (ratio.low > needed and lost.low > MIN_EFFECT_MS) or (not by_length and _oversubscribed(view)):
        return None
    told = f"; compute follows tokens per rank (correlation {follows:.2f})" if by_length else ""
    share = lost.value / float(slowest.mean())
    return spec.make(
        "high" if share > 0.25 else "medium",
        f"uneven batches: in each step {len(view.ranks)} ranks wait for the slowest, {lost.value:.1f} ms",
        f"the slowest rank of a step computes {slowest.mean():.1f} ms, the median one {middle.mean():.1f} ms "
        f"(ratio {ratio.value:.2f}, 95 % interval {ratio.low:.2f} to {ratio.high:.2f}); it is another rank each time"
        f"{told}",
        "give all ranks batches of equal length: group samples by length, pack sequences, or balance tokens per rank",
        confidence=0.95 if by_length else 0.7,
        recoverable_ms_per_step=lost.value,
        interval_ms_per_step=(lost.low, lost.high),
    )


def _compute_by_step(view: RunView) -> tuple[Array, Array] | None:
    """Steps x ranks: milliseconds without waiting, and tokens (samples where there are none).

    Of steps whose wait is known on every rank and that are not folded with others; None for too few of them.
    """
    if len(view.ranks) < 2:
        return None
    tables = [_unfolded(view.per_rank[rank], view.comm(rank)) for rank in view.ranks]
    shared = tables[0][0]
    for steps, *_ in tables[1:]:
        shared = np.intersect1d(shared, steps, assume_unique=True)
    if len(shared) < ENOUGH_STEPS:
        return None
    at = [np.searchsorted(steps, shared) for steps, *_ in tables]
    compute, tokens, samples = (
        np.stack([table[column][i] for table, i in zip(tables, at, strict=True)], axis=1) for column in (1, 2, 3)
    )
    return compute, tokens if tokens.any() else samples


def _unfolded(series: RankSeries, comm: Array) -> tuple[Array, Array, Array, Array]:
    """Steps, compute in milliseconds, tokens and samples of one rank's steady steps with a known wait."""
    rows = series.rows[series.steady & (series.n_steps == 1)]
    steps, ours, theirs = np.intersect1d(rows["step"], comm["step"], return_indices=True)
    compute = (rows["wall_ns"][ours] - comm["wait_ns"][theirs]) / 1e6
    return steps, compute, rows["tokens"][ours].astype(float), rows["samples"][ours].astype(float)


def _correlation(compute: Array, tokens: Array) -> float | None:
    """How far a step's differences between ranks follow their tokens; None where all have the same."""
    time, work = (x - x.mean(axis=1, keepdims=True) for x in (compute, tokens))
    scale = float(np.sqrt((time**2).sum() * (work**2).sum()))
    return float((time * work).sum()) / scale if scale > 0 and (work**2).sum() > 0 else None


def _oversubscribed(view: RunView) -> bool:
    return any(run_wait_share(rows) > 0.05 for rows in view.rank_processes.values())


assert set(CAUSE_OF_PHASE.values()) <= set(CATALOGUE)
