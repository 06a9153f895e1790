"""Ranks that take turns at being slow: batches of unequal length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputop_analysis.culprit import MIN_EFFECT_MS
from gputop_analysis.findings.advice import MAP_STYLE, TOKENS, Option
from gputop_analysis.findings.dialect import loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import RANK_WAITS, STEP_TIME
from gputop_analysis.findings.ranks.stragglers import straggler
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import ENOUGH_STEPS
from gputop_analysis.findings.sites import called_from
from gputop_analysis.hardware import run_wait_share
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import RankSeries, last_attempt
from gputop_analysis.stats import Interval, block_bootstrap
from gputop_analysis.view import Array, RunView

LEAST = 1.05
"""The slowest rank of a step takes so many times as long as the median one."""
LEAST_BY_CHANCE = 1.15
"""The same where compute follows neither the batches' lengths nor the ranks' CPU time."""
SURELY_FOLLOWS = 0.8
"""Correlation of compute with CPU time, from which ranks that differ have work that differs. Of 60
trainings on two busy cores those of alike ranks had up to 0.92, but hardly differed in CPU time.
"""
NEARLY_ALWAYS = 0.9
"""Part of the steps in which one rank is the slowest, from which the ranks do not take turns. Where
compute does not follow the batches' lengths, half way from an even share to all of them is enough:
it is one rank in a noisy run.
"""


@finding(
    id="CR05",
    name="rotating imbalance",
    family="ranks",
    cause="straggler",
    trigger="the slowest rank of each step takes 5 % longer than the median rank (15 % where "
    "neither lengths of batches nor CPU time tell why), but it is not always the same",
    fix="batches of equal length: group by length, pack, or balance tokens over the ranks",
    no_use="by length: where inputs are no tokens, or with an IterableDataset",
    reads="compute of each rank per step, tokens per rank",
    silent=(
        "a persistent straggler (CR01 to CR04); fewer than 20 common steps; cores that are scarce, "
        "unless CPU time is as uneven"
    ),
    traps="few steps, in which chance looks like a pattern",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(
        RANK_WAITS,
        STEP_TIME,
    ),
)
def rotating_imbalance(view: RunView, spec: Spec) -> Finding | None:
    """Batches differ in length, so that in each step all ranks wait for another one."""
    steps = _common_steps(view) if straggler(view) is None else None
    imbalance = _imbalance(steps) if steps is not None else None
    if steps is None or imbalance is None:
        return None
    beyond_doubt = imbalance.work_differs or _uneven_by_cpu_time(steps.cpu_ms)
    if _oversubscribed(view) and not beyond_doubt:
        return None
    if imbalance.by_length:
        load = "batches"
        why = f"; compute follows tokens per rank (correlation {imbalance.follows:.2f})"
        site = loader_site(Facts(view, view.ranks[0]))
    else:
        load = "work"
        why = "; so does its CPU time" if imbalance.by_cpu_time else ""
        site = called_from(view, "forward", view.ranks[0])
    ratio, lost = imbalance.ratio, imbalance.lost
    return spec.make(
        severity="high" if lost.value / imbalance.slowest_ms > 0.25 else "medium",
        title=f"uneven {load}: in each step {len(view.ranks)} ranks wait for the slowest, "
        f"{lost.value:.1f} ms",
        evidence=f"the slowest rank of a step computes {imbalance.slowest_ms:.1f} ms, the median "
        f"one {imbalance.middle_ms:.1f} ms (ratio {ratio.value:.2f}, 95 % interval "
        f"{ratio.low:.2f} to {ratio.high:.2f}); it is another rank each time{why}",
        fix=(
            "give all ranks batches of equal cost, and let random numbers that decide how much a "
            "step computes be the same on all ranks",
            Option("group samples by length", needs=(MAP_STYLE, TOKENS)),
            Option("pack sequences, or balance tokens per rank", needs=(TOKENS,)),
        ),
        site=site,
        confidence=0.95 if imbalance.by_length else 0.7,
        recoverable_ms_per_step=lost.value,
        interval_ms_per_step=(lost.low, lost.high),
        proof=_proof(imbalance, len(view.ranks)),
    )


class _Imbalance(NamedTuple):
    """How much longer than the others the slowest rank of a step computes, whichever it is."""

    steps: int
    slowest_ms: float
    middle_ms: float
    mean_ms: float
    ratio: Interval
    """Of the slowest rank of a step to the median one."""
    lost: Interval
    """Slowest less mean, ms per step."""
    follows: float | None
    """Correlation of compute with the batches' tokens; None where all ranks have the same."""
    by_cpu_time: bool

    @property
    def by_length(self) -> bool:
        """Whether the batches' lengths tell why."""
        return _is_by_length(self.follows)

    @property
    def work_differs(self) -> bool:
        """Whether lengths or CPU time tell that the ranks have unequal work."""
        return self.by_length or self.by_cpu_time

    @property
    def needed(self) -> float:
        """Ratio above which it is told."""
        return LEAST if self.work_differs else LEAST_BY_CHANCE


def _imbalance(steps: _Steps) -> _Imbalance | None:
    """None where the ranks are as fast as each other, or one of them is always the slowest."""
    compute = steps.compute_ms
    slowest, middle, mean = compute.max(axis=1), np.median(compute, axis=1), compute.mean(axis=1)
    if slowest.sum() <= LEAST * middle.sum() or (slowest - mean).mean() <= MIN_EFFECT_MS:
        return None
    follows = _correlation(compute, steps.tokens if steps.tokens.any() else steps.samples)
    often = np.bincount(compute.argmax(axis=1)).max() / len(compute)
    if often > (NEARLY_ALWAYS if _is_by_length(follows) else (1 + 1 / compute.shape[1]) / 2):
        return None  # it is one rank's doing, though not beyond doubt: see CR01 to CR04
    imbalance = _Imbalance(
        steps=len(slowest),
        slowest_ms=float(slowest.mean()),
        middle_ms=float(middle.mean()),
        mean_ms=float(mean.mean()),
        ratio=block_bootstrap(slowest, middle),
        lost=block_bootstrap(slowest - mean, np.ones(len(mean))),
        follows=follows,
        by_cpu_time=_follows_cpu_time(steps),
    )
    is_sure = imbalance.ratio.low > imbalance.needed and imbalance.lost.low > MIN_EFFECT_MS
    return imbalance if is_sure else None


def _is_by_length(follows: float | None) -> bool:
    return follows is not None and follows > 0.5


def _proof(imbalance: _Imbalance, ranks: int) -> Proof:
    source = f"steps.wall_ns - comm.wait_ns, {imbalance.steps:,} common steady steps, {ranks} ranks"
    follows = "all ranks have the same" if imbalance.follows is None else imbalance.follows
    return Proof(
        statistic="lower end of the 95 % interval of mean(slowest rank of a step) / "
        "mean(median rank of a step)",
        value=imbalance.ratio.low,
        threshold=imbalance.needed,
        unit="",
        formula="recoverable = mean over steps of (compute of the slowest rank - mean compute "
        "of all ranks); the threshold is 1.05 where compute follows tokens (correlation above "
        "0.5) or CPU time (above 0.8, and that differs by 5 % itself), else 1.15",
        inputs=(
            Input("compute of the slowest rank", imbalance.slowest_ms, "ms per step", source),
            Input("compute of the median rank", imbalance.middle_ms, "ms per step", source),
            Input("mean compute", imbalance.mean_ms, "ms per step", source),
            Input("correlation with tokens", follows, "", "steps.tokens, else steps.samples"),
        ),
    )


class _Steps(NamedTuple):
    """Steps of a rank, or steps x ranks, none folded with others, whose wait is known."""

    numbers: Array
    compute_ms: Array
    """Without waiting."""
    tokens: Array
    samples: Array
    cpu_ms: Array


def _common_steps(view: RunView) -> _Steps | None:
    """The steps that all ranks have; None for too few of them."""
    if len(view.ranks) < 2:
        return None
    tables = [_unfolded(view.per_rank[rank], view.comm(rank)) for rank in view.ranks]
    shared = tables[0].numbers
    for table in tables[1:]:
        if not np.array_equal(shared, table.numbers):
            shared = np.intersect1d(shared, table.numbers, assume_unique=True)
    if len(shared) < ENOUGH_STEPS:
        return None
    picked = []
    for table in tables:
        rows = np.searchsorted(table.numbers, shared)
        picked.append([column[rows] for column in table])
    return _Steps(*(np.stack(columns, axis=1) for columns in zip(*picked, strict=True)))


def _follows_cpu_time(steps: _Steps) -> bool:
    """Whether ranks also differ in CPU time, and step by step as they differ in compute."""
    measured = (steps.cpu_ms > 0).all(axis=1)
    if measured.sum() < ENOUGH_STEPS:
        return False
    cpu_ms = steps.cpu_ms[measured]
    slowest, mean = cpu_ms.max(axis=1), cpu_ms.mean(axis=1)
    differs = block_bootstrap(slowest, mean).low > LEAST
    correlation = _correlation(steps.compute_ms[measured], cpu_ms)
    return differs and correlation is not None and correlation > SURELY_FOLLOWS


def _uneven_by_cpu_time(cpu: Array) -> bool:
    """Whether ranks also use as unequal CPU time, which no lack of cores makes them do."""
    measured = cpu[(cpu > 0).all(axis=1)]
    slowest, middle = measured.max(axis=1).sum(), np.median(measured, axis=1).sum()
    return len(measured) >= ENOUGH_STEPS and bool(slowest > LEAST_BY_CHANCE * middle)


def _unfolded(series: RankSeries, comm: Array) -> _Steps:
    """One rank's steady steps with a known wait."""
    places = np.flatnonzero(series.steady & (series.n_steps == 1))
    comm = last_attempt(comm)
    steps, waited = series.steps[places], comm["step"].astype(np.int64)
    at = np.searchsorted(waited, steps)
    known_steps = at < len(waited)
    known_steps[known_steps] = waited[at[known_steps]] == steps[known_steps]
    rows = series.rows.take(places[known_steps])
    compute = (rows["wall_ns"] - comm["wait_ns"][at[known_steps]]) / 1e6
    tokens, samples, cpu_ns = (rows[name].astype(float) for name in ("tokens", "samples", "cpu_ns"))
    return _Steps(steps[known_steps] - series.ahead, compute, tokens, samples, cpu_ns / 1e6)


def _correlation(compute: Array, tokens: Array) -> float | None:
    """How far a step's differences between ranks follow their tokens; None: all alike."""
    time, work = (x - x.mean(axis=1, keepdims=True) for x in (compute, tokens))
    scale = float(np.sqrt((time**2).sum() * (work**2).sum()))
    if scale > 0 and (work**2).sum() > 0:
        return float((time * work).sum()) / scale
    return None


def _oversubscribed(view: RunView) -> bool:
    return any(run_wait_share(rows) > 0.05 for rows in view.rank_processes.values())
