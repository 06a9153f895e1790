"""Ranks against each other: one that is slow because its batches are larger than the others'."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import RANK_WAITS, SLOW_AGAINST_OTHERS
from gputop_analysis.findings.ranks.stragglers import Straggler, straggler, straggler_at
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.stages import passes_messages
from gputop_analysis.view import RunView

MORE_WORK = 1.05
"""Times the work of the median other rank."""
BESIDE_WORK = 0.1
"""Significance of the lead: that the rank that waits least is also the one with the larger batches
is evidence of its own, and few steps or a busy machine leave the lead alone uncertain.
"""
SURELY_MORE = 3.0
"""Standard errors that the work of batches differs by: texts of random length differ on average,
too, over a few hundred steps.
"""
MOST_OF_IT = 0.5
"""Part of the rank's longer compute that its larger batches must account for."""


@finding(
    id="CR15",
    name="straggler: more work",
    family="ranks",
    cause="straggler",
    trigger="the straggler rule (CR01, CR02) names a rank whose batches hold over 5 % more "
    "tokens (or samples, or values) than the others', which accounts for half of its "
    "longer compute or more",
    fix="batches of equal size on all ranks: group by length over all ranks, pack, or share "
    "the long samples out",
    explains=("CR01", "CR02", "CR04", "IN14"),
    no_use=(
        "by length: where inputs have none; where a rank has more on purpose, as "
        "a larger device may"
    ),
    reads=(
        "tokens and samples of each rank's batches, or the shapes it saw, beside the waits that "
        "name the slow rank"
    ),
    silent="one rank; no rank that is surely slow; batches that nothing counts; ranks that send "
    "to one another, as stages do",
    traps="one step in which a rank has more; a stage of a pipeline that has another batch",
    seen_on=CPU,
    pictures=(
        RANK_WAITS,
        SLOW_AGAINST_OTHERS,
    ),
)
def more_work(view: RunView, spec: Spec) -> Finding | None:
    """One rank is given longer texts or more samples than the others, at each step."""
    culprit = straggler(view) or straggler_at(view, BESIDE_WORK)
    if culprit is None or culprit.phase not in ("forward", "backward", "other", "optimizer"):
        return None
    if passes_messages(view):
        return None  # what a stage is called with is no batch
    work = _work(view, culprit.rank)
    if work is None or work.ratio < MORE_WORK:
        return None
    goes_with_it, longer = _accounted_ms(view, culprit, work.ratio)
    if longer <= 0 or goes_with_it < MOST_OF_IT * longer:
        return None
    rank, cost = culprit.rank, culprit.cost_ms
    won = culprit.recoverable_ms
    part = min(1.0, goes_with_it / won.value) if won.value > 0 else 0.0
    own_wait, theirs = culprit.wait_ms
    loader = view.hello(rank).get("dataloader") or {}
    return spec.make(
        severity="high" if cost.low > 0.10 * culprit.wall_ms else "medium",
        title=f"rank {rank} gets larger batches, {work.mine:,.0f} {work.unit} a step for "
        f"{work.others:,.0f}: the others lose {part * won.value:.1f} ms a step",
        evidence=f"rank {rank} has {work.ratio:.2f} times the {work.unit} of the median other "
        f"rank ({work.mine:,.1f} for {work.others:,.1f} a step) and computes longer by as much: "
        f"{culprit.causes}; it waits {own_wait:.1f} ms a step for the others, they wait "
        f"{theirs:.1f} ms for it ({culprit.waits.source}, p at most {culprit.culprit.p:.2g})",
        fix="give all ranks batches of equal length: share the samples out by length over all "
        f"ranks (not the long ones to rank {rank}), pack sequences, or cut off what is longer "
        "than the others'",
        rank=rank,
        host=view.host_of(rank) or None,
        site=loader.get("own_sampler_at") or loader.get("site"),
        confidence=min(0.99, float(1 - culprit.culprit.p)),
        recoverable_ms_per_step=part * won.value,
        interval_ms_per_step=(part * won.low, part * won.high),
        proof=Proof(
            statistic=f"{work.unit} of the slow rank / {work.unit} of the median other rank",
            value=work.ratio,
            threshold=MORE_WORK,
            unit="",
            formula="the straggler as for CR01; recoverable = mean over steps of (median wait of "
            "the others - wait of the slow rank), at most what goes with its larger batches: "
            "(ratio - 1) x compute of the median other rank",
            inputs=(
                Input(f"{work.unit} of rank {rank}", work.mine, "per step", work.source),
                Input(
                    f"{work.unit} of the median other rank", work.others, "per step", work.source
                ),
                Input("wait of the median other rank", theirs, "ms per step", culprit.waits.source),
                *(
                    Input(f"{phase} beyond the median rank", ms, "ms per step", f"steps.{phase}_ns")
                    for phase, ms in culprit.excess_ms.items()
                ),
            ),
        ),
    )


class _Work(NamedTuple):
    """What a rank's batches hold a step, and what the median other rank's do."""

    mine: float
    others: float
    unit: str
    source: str

    @property
    def ratio(self) -> float:
        return self.mine / self.others


def _work(view: RunView, rank: int) -> _Work | None:
    """By tokens, by samples, or by the values of seen shapes, whichever differs first."""
    works: list[_Work] = []
    for unit in ("tokens", "samples"):
        means = {r: _per_step(view, r, unit) for r in view.ranks}
        if _surely_apart(view, rank, unit):
            works += _compared(means, rank, unit, f"steps.{unit}")
    examples = {r: _example_sizes(view, r) for r in view.ranks}
    if _always_larger(examples, rank):
        means = {r: float(np.mean(sizes)) for r, sizes in examples.items()}
        works += _compared(means, rank, "values", "hello.shapes, mean of the examples")
    return next((work for work in works if work.ratio >= MORE_WORK), None)


def _compared(means: dict[int, float], rank: int, unit: str, source: str) -> list[_Work]:
    other_means = [mean for r, mean in means.items() if r != rank]
    if not other_means or min(means.values()) <= 0:
        return []
    return [_Work(means[rank], float(np.median(other_means)), unit, source)]


def _per_step(view: RunView, rank: int, column: str) -> float:
    rows = view.per_rank[rank].steady_rows
    return float(rows[column].sum()) / max(1, int(rows["n_steps"].sum()))


def _surely_apart(view: RunView, rank: int, column: str) -> bool:
    """Whether a rank's records differ in their work from all others' by more than chance."""
    other_ranks = [r for r in view.ranks if r != rank]
    mine, error = _mean_work(view, [rank], column)
    theirs, their_error = _mean_work(view, other_ranks, column)
    return abs(mine - theirs) > SURELY_MORE * np.hypot(error, their_error)


def _mean_work(view: RunView, ranks: list[int], column: str) -> tuple[float, float]:
    """Mean work of a step over the records of some ranks, and its standard error."""
    tables = [view.per_rank[rank].steady_rows for rank in ranks]
    per_step = [rows[column] / np.maximum(rows["n_steps"], 1) for rows in tables]
    work = np.concatenate([np.zeros(0), *per_step])
    if len(work) < 2:
        return 0.0, float("inf")
    return float(work.mean()), float(work.std(ddof=1)) / len(work) ** 0.5


def _example_sizes(view: RunView, rank: int) -> list[int]:
    """Sizes of the shapes that a rank gave as examples."""
    examples = (view.hello(rank).get("shapes") or {}).get("examples") or []
    return [int(np.prod(shape)) for shape in examples]


def _always_larger(examples: dict[int, list[int]], rank: int) -> bool:
    """Whether each example of a rank is larger than all of the others': a mean over the four of
    texts of random length says nothing.
    """
    sizes_of_others = [sizes for r, sizes in examples.items() if r != rank]
    is_known = bool(sizes_of_others) and all(examples.values())
    return is_known and min(examples[rank]) > max(max(sizes) for sizes in sizes_of_others)


def _accounted_ms(view: RunView, straggler: Straggler, ratio: float) -> tuple[float, float]:
    """How much longer a rank computes for larger batches, ms, if time goes with work."""
    assert view.common is not None
    forward = view.common.per_step_ms("forward_ns").mean(axis=0)
    backward = straggler.waits.backward_compute_ms
    backward = (view.common.per_step_ms("backward_ns") if backward is None else backward).mean(
        axis=0
    )
    column = straggler.culprit.column
    longer = straggler.excess_ms["forward"] + max(0.0, straggler.excess_ms["backward"])
    usual = float(np.median(np.delete(forward, column)) + np.median(np.delete(backward, column)))
    return (ratio - 1) * usual, longer
