"""Where the loss of a training goes: up, away, or nowhere."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.loss_spikes import networks_beside
from gputop_analysis.findings.numerics.mean_losses import mean_losses
from gputop_analysis.findings.numerics.wrong_habits import optimizer_site
from gputop_analysis.findings.pictures import LOSS, RATE
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.text import percent
from gputop_analysis.training_series import collect
from gputop_analysis.trend import LossTrend, Runaway, loss_trend, runaway, thrown_out
from gputop_analysis.view import Array, RunView

LIVE_POINTS = 1000
RISE_SHARE, RISE_NOISE, START_SHARE = 0.05, 3.0, 0.02
FIRST_LOSSES = 5


@finding(
    id="NU07",
    name="divergence or plateau",
    family="numerics",
    cause="nan",
    trigger="over 1000 steps or more the loss rises (Mann-Kendall p < 0.01 on medians of blocks, "
    f"by more than {percent(RISE_SHARE)} and {RISE_NOISE:g} standard deviations of the blocks), "
    "or within fewer it climbs to three times what the training began with, or stays above ten "
    "times the first step's, or it stands still with a learning rate above 0 (info)",
    fix="lower the learning rate, check labels, go on from a checkpoint before the rise",
    explains=("NU02", "NU03"),
    no_use="where the data changed on purpose",
    reads="steps.loss in blocks over 1000 steps (Mann-Kendall, Theil-Sen)",
    silent="fewer than 1000 losses",
    traps="adversarial and reinforcement learning, whose loss need not fall; a first loss of next "
    "to nothing, as that of a queue which fills yet (an info)",
    seen_on=CPU,
    pictures=(
        LOSS,
        RATE,
    ),
)
def divergence(view: RunView, spec: Spec) -> Finding | None:
    """The training makes things worse, or none. Two optimizers, as in a GAN, are not judged."""
    if not view.ranks or (view.hello().get("optimizer") or {}).get("others"):
        return None
    if view.live and not _may_rise(view):
        return None
    losses = _losses(view)
    if losses is None:
        return None
    away = runaway(*losses, start=_first_losses(view))
    if away is not None and not _explained(view):
        return _running_away(view, spec, away)
    thrown = thrown_out(*losses, first=_first_losses(view, count=1))
    if thrown is not None and not _explained(view):
        return _thrown_out(view, spec, thrown)
    trend = loss_trend(*losses)
    if trend is None:
        return None
    start = _start_level(view)
    if _rises(trend, start):
        return _rising(view, spec, trend, start)
    if trend.kind == "still" and _learning_rate(view) > 0:
        return _standing_still(view, spec, trend, start)
    return None


def _rises(trend: LossTrend, start: float) -> bool:
    least_rise = max(
        RISE_SHARE * abs(trend.first_loss), RISE_NOISE * trend.noise, START_SHARE * start
    )
    return trend.kind == "rising" and trend.change > least_rise


def _learning_rate(view: RunView) -> float:
    """The last one; NaN where it is not known."""
    return float(view.per_rank[view.ranks[0]].rows["lr"][-1])


def _rising(view: RunView, spec: Spec, trend: LossTrend, start: float) -> Finding:
    severity: Severity = "medium"
    if networks_beside(view):
        severity = "info"
    elif trend.last_loss > 2 * abs(trend.first_loss):
        severity = "high"
    return spec.make(
        severity=severity,
        title=f"the loss rises: {_course(trend)}",
        evidence=_trend_words(view, trend),
        fix="lower the learning rate and go on from a checkpoint before step "
        f"{trend.first_step:,}; look whether labels or data changed there",
        rank=everybody(view),
        confidence=0.8,
        proof=_trend_proof(trend, start, rises=True),
    )


def _standing_still(view: RunView, spec: Spec, trend: LossTrend, start: float) -> Finding:
    return spec.make(
        severity="info",
        title=f"the loss stands still: {_course(trend)}",
        evidence=_trend_words(view, trend),
        fix="if more is to be learnt: another learning rate or schedule, and a look at labels and "
        "data; else stop here",
        rank=everybody(view),
        confidence=0.6,
        proof=_trend_proof(trend, start, rises=False),
    )


def _course(trend: LossTrend) -> str:
    return f"{trend.first_loss:.4g} to {trend.last_loss:.4g} over {_span(trend)}"


def _span(trend: LossTrend | Runaway) -> str:
    return f"steps {trend.first_step:,} to {trend.last_step:,}"


def _trend_words(view: RunView, trend: LossTrend) -> str:
    lr = _learning_rate(view)
    lr_words = f", lr {lr:.3g}" if np.isfinite(lr) else ""
    return (
        f"medians of {trend.blocks} blocks over {_span(trend)}{lr_words}: fitted change "
        f"{trend.change:+.3g}, Mann-Kendall p = {trend.p:.2g}, scatter of the blocks "
        f"{trend.noise:.2g}"
    )


def _explained(view: RunView) -> bool:
    """Whether a loss may climb so in a sound training: one that learns from a target of its own, or
    on more samples.

    A network without gradients beside the one that is trained is a policy or a target: such a loss
    follows the rewards.
    """
    rows = view.per_rank[view.ranks[0]].steady_rows
    samples = rows["samples"] / np.maximum(rows["n_steps"], 1)
    few = max(1, len(samples) // 4)
    grown = len(samples) > 1 and np.median(samples[-few:]) > 1.5 * np.median(samples[:few])
    return bool(grown) or networks_beside(view)


def _running_away(view: RunView, spec: Spec, away: Runaway) -> Finding:
    span = f"steps {away.first_step:,} to {away.last_step:,}"
    lr = view.per_rank[view.ranks[0]].rows["lr"][-1]
    return spec.make(
        severity="high",
        title=f"the loss runs away: {away.low:.4g} to {away.last:.4g} over {span}",
        evidence=f"medians of {away.blocks} blocks climb from {away.low:.4g} to {away.last:.4g} "
        f"over {span}, Mann-Kendall p = {away.p:.2g}; the training began with {away.start:.4g}"
        + (f"; lr {lr:.3g}" if np.isfinite(lr) else ""),
        fix="lower the learning rate or warm it up, clip gradients "
        "(torch.nn.utils.clip_grad_norm_), and look whether the loss has the right sign; go on "
        f"from a checkpoint before step {away.first_step:,}",
        rank=everybody(view),
        site=optimizer_site(view, view.ranks[0]),
        confidence=0.9,
        proof=Proof(
            statistic="median of the last block / larger of the first losses of the run and the "
            "lowest block",
            value=away.last / max(away.start, away.low),
            threshold=away.threshold,
            unit="times",
            formula="blocks from the lowest one on, by Mann-Kendall p < 0.01; the last one "
            "is the highest or nearly so",
            inputs=(
                Input(
                    "first losses of the run",
                    away.start,
                    "",
                    "steps.loss, median of the first records",
                ),
                Input(
                    "lowest block",
                    away.low,
                    "",
                    f"steps.loss_max or device.loss, from step {away.first_step}",
                ),
                Input("last block", away.last, "", f"the same, to step {away.last_step}"),
                Input("Mann-Kendall p", away.p, "", f"{away.blocks} blocks"),
            ),
        ),
    )


NEXT_TO_NOTHING = 0.05
"""A first loss that is smaller says little: a queue that fills, as MoCo's, makes it larger without
any update.
"""


def _thrown_out(view: RunView, spec: Spec, away: Runaway) -> Finding:
    span = f"steps {away.first_step:,} to {away.last_step:,}"
    lr = view.per_rank[view.ranks[0]].rows["lr"][-1]
    if away.start < NEXT_TO_NOTHING:
        severity, what = "info", "the loss rose in the first steps"
    else:
        severity, what = "high", "the first updates threw the loss"
    return spec.make(
        severity=severity,
        title=f"{what} from {away.start:.4g} to {away.last:.4g}",
        evidence=f"the first step's loss was {away.start:.4g}; no block of {span} has a median "
        "below "
        f"{away.low:.4g}" + (f"; lr {lr:.3g}" if np.isfinite(lr) else ""),
        fix="lower the learning rate or warm it up, and begin anew: what the first updates "
        "destroyed is not learnt back; clip gradients (torch.nn.utils.clip_grad_norm_)",
        rank=everybody(view),
        site=optimizer_site(view, view.ranks[0]),
        confidence=0.9,
        proof=Proof(
            statistic="lowest block / loss of the first step",
            value=away.low / away.start,
            threshold=away.threshold,
            unit="times",
            formula=f"medians of {away.blocks} blocks of steps",
            inputs=(
                Input("loss of the first step", away.start, "", "steps.loss"),
                Input("lowest block", away.low, "", f"steps.loss_max or device.loss, {span}"),
                Input("last block", away.last, "", f"the same, to step {away.last_step}"),
            ),
        ),
    )


def _first_losses(view: RunView, count: int = FIRST_LOSSES) -> float:
    """The level of the training's begin: median of the first ``count`` losses of its record."""
    losses = view.record.steps(view.ranks[0])["loss"][:50]
    finite = losses[np.isfinite(losses)][:count]
    return float(np.median(finite)) if len(finite) else float("nan")


def _losses(view: RunView) -> tuple[Array, Array, Array]:
    """First steps, last steps, losses: the ranks' mean; live, the first rank's window."""
    if not view.live:
        return mean_losses(view)
    series = collect(view, view.ranks[0], LIVE_POINTS)
    return series.first_step, series.step, series.loss


def _may_rise(view: RunView) -> bool:
    """A look at the window's ends: while a run is live, only a rise is worth the statistics."""
    late, rows = view.device(view.ranks[0]), view.per_rank[view.ranks[0]].rows
    if len(late) and np.isfinite(late["loss"]).any():
        losses = late["loss"]
    else:
        losses = rows["loss"]
    losses = losses[np.isfinite(losses)]
    few = len(losses) // 4
    if not few:
        return False
    first, last = float(np.median(losses[:few])), float(np.median(losses[-few:]))
    return last - first > 0.5 * RISE_SHARE * abs(first)


def _start_level(view: RunView) -> float:
    """What the loss was in the beginning: a rise that is nothing beside it is no divergence."""
    losses = view.record.steps(view.ranks[0])["loss"][:50]
    finite = losses[np.isfinite(losses)]
    return float(np.median(np.abs(finite))) if len(finite) else 0.0


def _trend_proof(trend: LossTrend, start: float, rises: bool) -> Proof:
    source = f"steps.loss_max or device.loss, steps {trend.first_step} to {trend.last_step}"
    limit = max(RISE_SHARE * abs(trend.first_loss), RISE_NOISE * trend.noise, START_SHARE * start)
    if rises:
        statistic, value, threshold = "fitted change of the loss", trend.change, limit
    else:
        statistic = "Mann-Kendall p on medians of blocks; no trend above the threshold"
        value, threshold = trend.p, 0.10
    return Proof(
        statistic=statistic,
        value=value,
        threshold=threshold,
        unit="",
        formula="change = Theil-Sen slope of the blocks' medians x their number; blocks of five "
        "autocorrelation times; threshold = max(5 % of the first loss, 3 standard deviations of "
        "the blocks, 2 % of the first losses of the run)",
        inputs=(
            Input("first quarter of the blocks", trend.first_loss, "", source),
            Input("last quarter", trend.last_loss, "", source),
            Input("Mann-Kendall p", trend.p, "", f"{trend.blocks} blocks"),
            Input("standard deviation of the blocks", trend.noise, "", "around the fitted line"),
            Input("first losses of the run", start, "", "steps.loss, first 50 records"),
        ),
    )
