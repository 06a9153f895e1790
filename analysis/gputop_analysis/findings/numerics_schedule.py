"""The course of a training: its learning rate, its loss scale, and where its loss goes."""

from __future__ import annotations

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.advice import BFLOAT16, OWN_LOOP, Option
from gputop_analysis.findings.numerics import mean_losses
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.numerics import collect
from gputop_analysis.trend import LossTrend, loss_trend
from gputop_analysis.view import Array, RunView

AFTER_STEP, ENOUGH_STEPS, SKIP_SHARE = 200, 50, 0.05


@finding(
    id="NU04",
    name="GradScaler keeps skipping",
    family="numerics",
    cause="nan",
    trigger="more than 5 % of the steps after step 200 are skipped, or the loss scale falls below 1",
    fix="bf16 instead of fp16, a lower learning rate, gradient clipping after unscale_",
)
def scaler_skips(view: RunView, spec: Spec) -> Finding | None:
    """Gradients overflow again and again, and those steps are lost."""
    worst = max((one for rank in view.ranks if (one := _skips(view, rank))), default=None)
    if worst is None:
        return None
    share, skipped, steps, rank, scale = worst
    collapsed = bool(np.isfinite(scale) and scale < 1)
    if share <= SKIP_SHARE and not collapsed:
        return None
    value, threshold, unit = (100 * share, 100 * SKIP_SHARE, "%") if share > SKIP_SHARE else (scale, 1.0, "")
    now = f", loss scale now {scale:g}" if np.isfinite(scale) else ""
    return spec.make(
        "high" if share > 0.25 or collapsed else "medium",
        f"GradScaler skips {100 * share:.0f} % of the updates{now}",
        f"{skipped:,} of {steps:,} steps after step {AFTER_STEP} of rank {rank} made no update, because a gradient was "
        f"infinite or NaN{now}",
        (
            Option("use torch.bfloat16 and no scaler", needs=(BFLOAT16,), assumes=False),
            "lower the learning rate",
            Option("clip after scaler.unscale_(optimizer)", needs=(OWN_LOOP,), assumes=False),
        ),
        rank=rank if len(view.ranks) == 1 else None,
        proof=Proof(
            "skipped updates / steps" if share > SKIP_SHARE else "loss scale; raised below the threshold",
            float(value),
            threshold,
            unit,
            "a step is skipped where GradScaler.step ends without a step of the optimizer",
            (
                Input("skipped", skipped, "steps", f"steps.flags and steps.optimizer_steps, rank {rank}"),
                Input("steps", steps, "", f"after step {AFTER_STEP}"),
                Input("loss scale", scale, "", "steps.loss_scale, the last"),
            ),
        ),
    )


def _skips(view: RunView, rank: int) -> tuple[float, int, int, int, float] | None:
    """Share, skipped steps, steps, rank, last loss scale; None where nothing is scaled or too few steps are there."""
    series = view.per_rank[rank]
    if (view.hello(rank).get("amp") or {}).get("grad_scaler") is False:
        return None
    late = series.steps >= AFTER_STEP
    late[: series.attempt_start] = False
    flagged = late & ((series.rows["flags"] & wire.F_SCALER_SKIP) != 0)
    scales = series.rows["loss_scale"][late]
    scales = scales[np.isfinite(scales)]
    steps = int(series.n_steps[late].sum())
    if steps < ENOUGH_STEPS or not (flagged.any() or len(scales)):
        return None
    missing = series.n_steps[flagged] - series.rows["optimizer_steps"][flagged].astype(np.int64)
    skipped = int(np.clip(missing, 1, series.n_steps[flagged]).sum())
    return skipped / steps, skipped, steps, rank, float(scales[-1]) if len(scales) else float("nan")


ZERO_STEPS, ZERO_SHARE = 50, 0.02


@finding(
    id="NU06",
    name="learning rate is zero",
    family="numerics",
    cause="compute",
    trigger="the learning rate of all groups is 0 for the last 50 steps and 2 % of the run, or torch has warned that "
    "the "
    "scheduler steps before the optimizer (info)",
    fix="a schedule as long as the run; scheduler.step() after optimizer.step(), once for each of its units",
)
def learning_rate_zero(view: RunView, spec: Spec) -> Finding | None:
    """Steps that change nothing."""
    for rank in view.ranks:
        zero, before, last = _zero_steps(view, rank)
        if zero >= max(ZERO_STEPS, ZERO_SHARE * last):
            return spec.make(
                "high",
                f"the learning rate is 0 since step {last - zero + 1}: nothing is learnt",
                f"lr is 0 in the last {zero:,} steps of rank {rank}"
                + (f", it was {before:.3g} before" if np.isfinite(before) else "; it was never above 0"),
                "the schedule is shorter than the run, or is stepped once a batch where it counts epochs: set its "
                "total steps to the run's, and a floor above 0",
                rank=everybody(view),
                proof=Proof(
                    "steps at the end with a learning rate of 0",
                    zero,
                    max(ZERO_STEPS, ZERO_SHARE * last),
                    "steps",
                    "threshold = max(50 steps, 2 % of the steps done)",
                    (
                        Input("lr before", before, "", f"steps.lr, rank {rank}"),
                        Input("last step", last, "", f"steps.step, rank {rank}"),
                    ),
                ),
            )
    return _misordered(view, spec)


def _zero_steps(view: RunView, rank: int) -> tuple[int, float, int]:
    """Steps at the end with lr 0 in all groups, the lr before, and the last step."""
    series = view.per_rank[rank]
    lr = series.rows["lr"][series.attempt_start :]
    if not len(lr) or lr[-1] != 0:
        return 0, float("nan"), 0
    looks = told(view, "checkup").get(rank)
    groups = (view.hello(rank).get("optimizer") or {}).get("groups", 1)
    last = int(series.steps[-1])
    if groups > 1 and not (looks and looks[-1].get("lr_max") == 0):
        return 0, float("nan"), last
    positive = np.flatnonzero(~(lr == 0))
    begin = int(positive[-1]) + 1 if len(positive) else 0
    counts = series.n_steps[series.attempt_start :]
    return int(counts[begin:].sum()), float(lr[begin - 1]) if begin else float("nan"), last


def _misordered(view: RunView, spec: Spec) -> Finding | None:
    for rank, looks in told(view, "checkup").items():
        scaled = (view.hello(rank).get("amp") or {}).get("grad_scaler")
        if any(one.get("scheduler_first") for one in looks) and not scaled:  # a skipped first step makes torch warn too
            return spec.make(
                "info",
                "the scheduler steps before the optimizer: the first learning rate is skipped",
                f"torch has warned of it in the process of rank {rank}",
                "call scheduler.step() after optimizer.step()",
                rank=everybody(view),
                proof=Proof(
                    "torch's warning 'Detected call of `lr_scheduler.step()` before `optimizer.step()`'",
                    1,
                    0,
                    "warnings",
                    "the warning lies in a module's __warningregistry__",
                    (Input("seen", 1, "", f"checkup event, rank {rank}"),),
                ),
            )
    return None


LIVE_POINTS = 1000
RISE_SHARE, RISE_NOISE, START_SHARE = 0.05, 3.0, 0.02


@finding(
    id="NU07",
    name="divergence or plateau",
    family="numerics",
    cause="nan",
    trigger="over 1000 steps or more the loss rises (Mann-Kendall p < 0.01 on medians of blocks, by more than 5 % and "
    "3 standard deviations of the blocks), or stands still with a learning rate above 0 (info)",
    fix="lower the learning rate, check labels, go on from a checkpoint before the rise",
    explains=("NU02", "NU03"),
)
def divergence(view: RunView, spec: Spec) -> Finding | None:
    """The training makes things worse, or nothing at all. Two optimizers, as in a GAN, are not judged."""
    if not view.ranks or (view.hello().get("optimizer") or {}).get("others"):
        return None
    trend = loss_trend(*_losses(view)) if not view.live or _may_rise(view) else None
    if trend is None:
        return None
    start = _start_level(view)
    rises = trend.kind == "rising" and trend.change > max(
        RISE_SHARE * abs(trend.first_loss), RISE_NOISE * trend.noise, START_SHARE * start
    )
    lr = view.per_rank[view.ranks[0]].rows["lr"][-1]
    if not rises and not (trend.kind == "still" and lr > 0):
        return None
    span = f"steps {trend.first_step:,} to {trend.last_step:,}"
    far = rises and trend.last_loss > 2 * abs(trend.first_loss)
    lr_told = f", lr {lr:.3g}" if np.isfinite(lr) else ""
    return spec.make(
        "high" if far else "medium" if rises else "info",
        f"the loss {'rises' if rises else 'stands still'}: {trend.first_loss:.4g} to {trend.last_loss:.4g} over {span}",
        f"medians of {trend.blocks} blocks over {span}{lr_told}: fitted change {trend.change:+.3g}, Mann-Kendall "
        f"p = {trend.p:.2g}, scatter of the blocks {trend.noise:.2g}",
        f"lower the learning rate and go on from a checkpoint before step {trend.first_step:,}; look whether labels or "
        "data changed there"
        if rises
        else "if more is to be learnt: another learning rate or schedule, and a look at labels and data; else stop "
        "here",
        rank=everybody(view),
        confidence=0.8 if rises else 0.6,
        proof=_trend_proof(trend, start, rises),
    )


def _losses(view: RunView) -> tuple[Array, Array, Array]:
    """First steps, last steps and losses: the ranks' mean, or while a run is live, the first rank's whole window."""
    if not view.live:
        return mean_losses(view)
    series = collect(view, view.ranks[0], LIVE_POINTS)
    return series.first_step, series.step, series.loss


def _may_rise(view: RunView) -> bool:
    """A look at the window's ends: while a run is live, only a rise is worth the statistics."""
    late, rows = view.device(view.ranks[0]), view.per_rank[view.ranks[0]].rows
    losses = late["loss"] if len(late) and np.isfinite(late["loss"]).any() else rows["loss"]
    losses = losses[np.isfinite(losses)]
    few = len(losses) // 4
    if not few:
        return False
    first, last = float(np.median(losses[:few])), float(np.median(losses[-few:]))
    return last - first > 0.5 * RISE_SHARE * abs(first)


def _start_level(view: RunView) -> float:
    """What the loss was in the beginning: a rise that is nothing beside it is no divergence."""
    losses = view.record.steps(view.ranks[0])["loss"][:50]
    known = losses[np.isfinite(losses)]
    return float(np.median(np.abs(known))) if len(known) else 0.0


def _trend_proof(trend: LossTrend, start: float, rises: bool) -> Proof:
    source = f"steps.loss_max or device.loss, steps {trend.first_step} to {trend.last_step}"
    limit = max(RISE_SHARE * abs(trend.first_loss), RISE_NOISE * trend.noise, START_SHARE * start)
    return Proof(
        "fitted change of the loss" if rises else "Mann-Kendall p on medians of blocks; no trend above the threshold",
        trend.change if rises else trend.p,
        limit if rises else 0.10,
        "",
        "change = Theil-Sen slope of the blocks' medians x their number; blocks of five autocorrelation times; "
        "threshold = max(5 % of the first loss, 3 standard deviations of the blocks, 2 % of the first losses of the "
        "run)",
        (
            Input("first quarter of the blocks", trend.first_loss, "", source),
            Input("last quarter", trend.last_loss, "", source),
            Input("Mann-Kendall p", trend.p, "", f"{trend.blocks} blocks"),
            Input("standard deviation of the blocks", trend.noise, "", "around the fitted line"),
            Input("first losses of the run", start, "", "steps.loss, first 50 records"),
        ),
    )
