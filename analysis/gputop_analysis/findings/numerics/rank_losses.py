"""Ranks whose losses differ: one stands out from the others again and again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.mean_losses import largest_loss
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.told import spread
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import picked
from gputop_analysis.stats import mad_sigma
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView

LIVE_RECORDS, MAX_RECORDS = 300, 2000
MIN_RANKS, MIN_COMMON_STEPS = 3, 50
OUTLIER_SIGMAS, MIN_RELATIVE, REPEATED_SHARE, MIN_OUTLIERS = 8.0, 0.2, 0.05, 5
BEYOND_OTHERS = 1.5
"""Times what the other ranks reach more than once: small losses have long tails on every rank."""


class RankLosses(NamedTuple):
    """Losses of the same steps on all ranks, or the largest ones of the same groups of steps."""

    lasts: Array
    """Each one's last step."""
    losses: Array
    """Steps or groups x ranks."""
    around: Array
    """The same, to be compared with: of a group, the largest loss in it and in its neighbours."""
    ranks: list[int]
    group: int
    """Steps in a group; 1: these are steps."""

    @property
    def unit(self) -> str:
        """``steps`` or ``groups of 40 steps``."""
        if self.group == 1:
            return "steps"
        return f"groups of {self.group} steps"


@finding(
    id="NU10",
    name="loss of one rank stands out",
    family="numerics",
    cause="nan",
    trigger=f"one rank's loss lies {OUTLIER_SIGMAS:g} robust standard deviations and "
    f"{percent(MIN_RELATIVE)} above the median of three ranks or more, in "
    f"{percent(REPEATED_SHARE)} of the steps (where a record stands for several: of groups of "
    "steps, by their largest loss) and at least five, "
    f"{BEYOND_OTHERS:g} times as far as any other rank's does more than once",
    fix="look at that rank's shard; run the steps again on another GPU",
    explains=("NU02",),
    no_use="with one rank",
    reads=(
        "steps.loss of each rank at the same step; where several steps share a record, "
        "steps.loss_max in equal groups"
    ),
    silent=(
        "fewer than three ranks; losses not read; fewer than 50 steps or groups that all ranks have"
    ),
    traps="shards of different domains",
    seen_on=CPU,
)
def rank_loss_outlier(view: RunView, spec: Spec) -> Finding | None:
    """A bad shard, or hardware that computes wrongly."""
    same_steps = _of_same_steps(view) or _of_same_groups(view)
    if same_steps is None:
        return None
    middle = np.median(same_steps.around, axis=1)
    above = same_steps.losses - middle[:, None]
    far = above > MIN_RELATIVE * np.abs(middle)[:, None]
    if far.sum(0).max() < MIN_OUTLIERS:
        return None
    sigma = np.median([mad_sigma(column) for column in above.T])
    out = far & (above > OUTLIER_SIGMAS * max(float(sigma), 1e-12))
    counts = out.sum(0)
    worst = int(counts.argmax())
    out[:, worst] &= above[:, worst] > BEYOND_OTHERS * _repeated(np.delete(above, worst, axis=1))
    counts[worst] = out[:, worst].sum()
    enough, next_most = (
        max(MIN_OUTLIERS, REPEATED_SHARE * len(middle)),
        int(np.delete(counts, worst).max()),
    )
    if counts[worst] < enough or next_most >= MIN_OUTLIERS:
        return None
    rank, at = same_steps.ranks[worst], np.flatnonzero(out[:, worst])
    named = ", ".join(str(same_steps.lasts[i]) for i in at[:5]) + (" ..." if len(at) > 5 else "")
    return spec.make(
        severity="medium",
        title=f"the loss of rank {rank} stands out in {counts[worst]} of {len(middle)} "
        f"{same_steps.unit}",
        evidence=f"{'steps' if same_steps.group == 1 else 'groups that end about step'} {named}: "
        f"{'loss' if same_steps.group == 1 else 'largest loss'} "
        f"{np.median(same_steps.losses[at, worst]):.4g}, median of {len(same_steps.ranks)} ranks "
        f"{np.median(middle[at]):.4g}",
        fix=(
            f"look at the data of rank {rank} (corrupt or other samples, labels)",
            "if its data is as the others', run these steps again on another GPU: wrong results "
            "without an error are possible",
        ),
        rank=rank,
        site=_batches_at(view, rank),
        confidence=0.7,
        proof=_proof(same_steps, int(counts[worst]), enough, float(sigma), next_most),
    )


def _batches_at(view: RunView, rank: int) -> str | None:
    """Where the training takes its batches."""
    loader = view.hello(rank).get("dataloader") or {}
    return loader.get("loop") or loader.get("site")


def _repeated(above: Array) -> float:
    """What one of these ranks reached twice, and so not by one bad step."""
    return float(np.sort(above, axis=0)[-2].max())


def _proof(losses: RankLosses, count: int, enough: float, sigma: float, next_most: int) -> Proof:
    column = "steps.loss" if losses.group == 1 else "steps.loss_max"
    return Proof(
        statistic=f"{losses.unit} in which the rank's loss lies 8 robust standard deviations and "
        "20 % above the ranks' median, and beyond what other ranks reach",
        value=count,
        threshold=float(enough),
        unit=losses.unit,
        formula="standard deviation = median over ranks of 1.4826 x median absolute deviation of "
        "loss - median of the ranks",
        inputs=(
            Input("standard deviation", sigma, "", f"{column} of {len(losses.ranks)} ranks"),
            Input(f"{losses.unit} that all ranks have", len(losses.lasts), "", "steps.step"),
            Input("next rank", next_most, losses.unit, "the rank with the next most"),
        ),
    )


def _of_same_steps(view: RunView) -> RankLosses | None:
    """Steps whose own loss is known on every rank."""
    ranks = spread(view.ranks)
    if len(ranks) < MIN_RANKS:
        return None
    series_of_ranks: list[tuple[Array, Array]] = []
    for rank in ranks:
        rows = _newest(view, rank)
        finite = np.isfinite(rows["loss"])
        series_of_ranks.append((rows["step"][finite], rows["loss"][finite]))
    common = series_of_ranks[0][0]
    for steps, _ in series_of_ranks[1:]:
        if not np.array_equal(common, steps):
            common = np.intersect1d(common, steps)
    if len(common) < MIN_COMMON_STEPS:
        return None
    columns = [losses[np.searchsorted(steps, common)] for steps, losses in series_of_ranks]
    losses = np.stack(columns, axis=1).astype(np.float64)
    return RankLosses(common, losses, losses, ranks, 1)


def _of_same_groups(view: RunView) -> RankLosses | None:
    """The largest loss of equal groups of steps, where each rank folds other steps into its
    records.

    A record counts for the group of its last step, although some of its steps may lie in the group
    before: so the others are looked at with their neighbours, and a jump on all ranks never makes
    one of them stand out.
    """
    ranks = spread(view.ranks)
    tables = [_newest(view, rank) for rank in ranks]
    if len(ranks) < MIN_RANKS or any(
        not len(rows) or "loss_max" not in (rows.dtype.names or ()) for rows in tables
    ):
        return None
    tables = [picked(rows, np.isfinite(largest_loss(rows))) for rows in tables]
    if min(len(rows) for rows in tables) < MIN_COMMON_STEPS:
        return None
    group = 2 * max(int(np.quantile(rows["n_steps"], 0.95)) for rows in tables)
    first, last = (
        max(int(rows["step"][0]) for rows in tables),
        min(int(rows["step"][-1]) for rows in tables),
    )
    count = (last - first) // group
    if count < MIN_COMMON_STEPS:
        return None
    losses = np.stack([_largest_by_group(rows, first, group, count) for rows in tables], axis=1)
    edge = np.full((1, len(ranks)), -np.inf)
    around = np.maximum(
        losses, np.maximum(np.vstack([edge, losses[:-1]]), np.vstack([losses[1:], edge]))
    )
    lasts = first + group * np.arange(1, count + 1) - 1
    complete = np.isfinite(losses).all(axis=1)
    if complete.sum() < MIN_COMMON_STEPS:
        return None
    return RankLosses(lasts[complete], losses[complete], around[complete], ranks, group)


def _largest_by_group(rows: Array, first: int, group: int, count: int) -> Array:
    """The largest loss of each group; minus infinity for one without a record."""
    at = (rows["step"].astype(np.int64) - first) // group
    inside = (at >= 0) & (at < count)
    largest = np.full(count, -np.inf)
    np.maximum.at(largest, at[inside], largest_loss(rows)[inside])
    return largest


def _newest(view: RunView, rank: int) -> Array:
    """Newest records with a loss of the rank's last process: the device's if it has them."""
    series, late = view.per_rank[rank], view.device(rank)
    if len(late) and np.isfinite(late["loss"]).any():
        rows = late
    else:
        rows = series.rows[series.attempt_start :]
    return rows[-(LIVE_RECORDS if view.live else MAX_RECORDS) :]
