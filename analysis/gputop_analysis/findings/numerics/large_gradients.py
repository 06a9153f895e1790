"""Gradients too large, growing, or always clipped."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.dead_networks import ALIKE
from gputop_analysis.findings.pictures import LOSS, NORM
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import picked
from gputop_analysis.spikes import stand_outs, steps_named
from gputop_analysis.text import counted, factor, percent
from gputop_analysis.view import Array, RunView

RECORDS = 600
"""Newest records that are looked at while a run is live."""
ALARM_SIGMAS, ALARM_FACTOR = 12.0, 5.0
GROWING_RECORDS, GROWN_FACTOR = 10, 10.0


def gradient_norms(view: RunView, from_step: int = 0) -> tuple[int, Array, Array, Array]:
    """First rank with gradient norms, first and last steps, finite norms; or empty."""
    for rank, series in view.per_rank.items():
        late = view.device(rank)
        if len(late) and np.isfinite(late["grad_norm"]).any():
            rows = late
        else:
            rows = series.rows[series.attempt_start :]
        rows = rows[-RECORDS:] if view.live else rows
        rows = picked(rows, np.isfinite(rows["grad_norm"]) & (rows["step"] >= from_step))
        if len(rows):
            last = rows["step"].astype(np.int64)
            if "n_steps" in (rows.dtype.names or ()):
                folded = rows["n_steps"].astype(np.int64)
            else:
                folded = 1
            return (
                rank,
                last - np.maximum(folded, 1) + 1,
                last,
                rows["grad_norm"].astype(np.float64),
            )
    nothing = np.zeros(0, np.int64)
    return -1, nothing, nothing, np.zeros(0)


@finding(
    id="NU03",
    name="gradient norm blow-up",
    family="numerics",
    cause="nan",
    trigger="a gradient norm 8 robust standard deviations of its logarithm above the 100 before "
    f"it (medium from {ALARM_SIGMAS:g} and {ALARM_FACTOR:g} times), or ten records in a row that "
    "rise tenfold",
    fix="a lower learning rate or a longer warm-up; clip gradients",
    no_use="where the norm follows the loss's own scale",
    reads=(
        "steps.grad_norm as clip_grad_norm_ returns it; of several steps in a record the last, "
        "or the largest if it is four times that"
    ),
    silent=(
        "no clipping: the norm is not computed; jumps of less than four times inside "
        "a record of several steps"
    ),
    traps="the warm-up's first steps",
    seen_on=CPU,
    pictures=(
        NORM,
        LOSS,
    ),
)
def gradient_blow_up(view: RunView, spec: Spec) -> Finding | None:
    """What clip_grad_norm_ returned jumps up. Without clipping there is no norm to judge."""
    rank, firsts, lasts, norms = gradient_norms(view, from_step=20)
    spikes, levels, sigmas = stand_outs(norms, min_relative=1.0, logarithmic=True)
    begin = _growth_begin(norms)
    if not len(spikes) and begin is None:
        return None
    if begin is not None:
        at, level, value = len(norms) - 1, norms[begin], norms[-1]
        told_as = (
            f"gradient norm rises from {level:.3g} to {value:.3g} over the last "
            f"{at - begin + 1} records"
        )
        proof_value, threshold, unit, severe = float(value / level), GROWN_FACTOR, "times", True
        statistic = f"last gradient norm / first of {at - begin + 1} records that each rise"
    else:
        peak = int(np.argmax(norms[spikes] / levels))
        at, level, value = int(spikes[peak]), float(levels[peak]), float(norms[spikes[peak]])
        told_as = f"gradient norm jumps to {value:.3g}, {factor(value / level)} times its level"
        proof_value, threshold, unit = float(sigmas[peak]), 8.0, "standard deviations"
        severe = sigmas[peak] > ALARM_SIGMAS and value > ALARM_FACTOR * level
        statistic = "(log norm - median of the 100 before it) / their robust standard deviation"
    named = steps_named(int(firsts[at]), int(lasts[at]))
    return spec.make(
        severity="medium" if severe else "info",
        title=f"{told_as} ({named})",
        evidence=f"gradient norm {value:.4g} before clipping at {named} of rank {rank}, "
        f"{level:.4g} before that; {counted(len(spikes), 'jump')} in {len(norms):,} records",
        fix=(
            "look at the batch of that step",
            "lower the learning rate or warm up longer",
            "clip at about the usual norm: "
            + phrase(Facts(view, rank), "clip", norm=_round(level)),
        ),
        rank=everybody(view),
        proof=Proof(
            statistic=statistic,
            value=proof_value,
            threshold=threshold,
            unit=unit,
            formula="standard deviation = 1.4826 x median absolute deviation of the logarithms",
            inputs=(
                Input(
                    "gradient norm",
                    float(value),
                    "",
                    f"steps.grad_norm or device.grad_norm, rank {rank}, {named}",
                ),
                Input(
                    "level before",
                    float(level),
                    "",
                    "median of the 100 records before, or the first of the rise",
                ),
                Input("records", len(norms), "", f"with a gradient norm, rank {rank}"),
            ),
        ),
    )


def _growth_begin(norms: Array) -> int | None:
    """Where the last ten or more records begin to rise one after another, by a factor of ten."""
    tail = norms[-200:]
    falls = np.flatnonzero(np.diff(tail) <= 0)
    begin = int(falls[-1]) + 1 if len(falls) else 0
    if len(tail) - begin <= GROWING_RECORDS or not 0 < GROWN_FACTOR * tail[begin] <= tail[-1]:
        return None
    return len(norms) - len(tail) + begin


CLIPPED_SHARE, CLIP_STEPS, EARLY_STEPS, FAR_ABOVE, ENOUGH_NORMS = 0.90, 500, 100, 10.0, 20
FAR_ABOVE_ADAPTIVE = 300.0
"""Of optimizers that divide by the size of the gradients: to them a factor on all is nothing, and
PPO with Adam clips to a hundredth by default.
"""
LEAST_LATE, NEARLY_ALL = 10, 0.95
"""Calls of ``clip_grad_norm_`` after the update, and their part of all."""
SIZES_OF_GRADIENTS = {"exp_avg_sq", "exp_avg_sq_row", "square_avg", "sum", "exp_inf"}
"""States of Adam and its kin, Adafactor, RMSprop and Adadelta, Adagrad, Adamax."""


@finding(
    id="NU05",
    name="always clipped",
    family="numerics",
    cause="compute",
    trigger=f"the gradient norm exceeds max_norm in more than {percent(CLIPPED_SHARE)} of "
    f"{CLIP_STEPS} steps after the first {EARLY_STEPS}; medium where the median norm is more than "
    f"ten times max_norm, {FAR_ABOVE_ADAPTIVE:g} times where the optimizer divides by the size of "
    "the gradients; or gradients are clipped while a GradScaler has them scaled, or after the "
    "update has used them",
    fix="raise max_norm to about the usual norm, or lower the learning rate; unscale first",
    no_use="where steps of equal length are what is wanted",
    reads="steps.grad_norm against max_norm over 500 steps; calls between a GradScaler's scale and "
    "unscale_; calls between an update and the next backward",
    silent="no clipping; fewer than 500 steps, unless scaled or late; late beside another "
    "optimizer",
    traps="updates that are normalised on purpose",
    seen_on=CPU,
    pictures=(
        NORM,
        LOSS,
    ),
)
def always_clipped(view: RunView, spec: Spec) -> Finding | None:
    """Each step is scaled to the same length: the learning rate no longer means what it says."""
    return (
        _clipped_late(view, spec)
        or _clipped_while_scaled(view, spec)
        or _always_clipped(view, spec)
    )


def _clipped_late(view: RunView, spec: Spec) -> Finding | None:
    """The update has gradients of any size, whatever the limit."""
    for rank, events in told(view, "checkup").items():
        calls, late = (events[-1].get(name) or 0 for name in ("clips", "clips_late"))
        if late < LEAST_LATE or late < NEARLY_ALL * calls:
            continue
        return spec.make(
            severity="medium",
            title="gradients are clipped after the update has used them: the limit never holds",
            evidence=f"{late:,} of {calls:,} calls of clip_grad_norm_ of rank {rank} up to step "
            f"{events[-1]['step']} came after the optimizer's update, with no backward in between",
            fix="clip between backward() and optimizer.step()",
            rank=everybody(view),
            site=events[-1].get("clips_late_at")
            or (view.hello(rank).get("clip") or {}).get("site"),
            confidence=0.95,
            proof=Proof(
                statistic="calls of clip_grad_norm_ after the update",
                value=late,
                threshold=LEAST_LATE - 1,
                unit="calls",
                formula="of the only optimizer; none where max_norm is infinite",
                inputs=(Input("calls", calls, "", f"checkup events, rank {rank}"),),
            ),
        )
    return None


def _clipped_while_scaled(view: RunView, spec: Spec) -> Finding | None:
    """The limit is compared with gradients that a GradScaler has multiplied."""
    for rank, events in told(view, "checkup").items():
        calls = events[-1].get("clips_scaled") or 0
        limit = (view.hello(rank).get("clip") or {}).get("max_norm")
        scales = view.record.steps(rank)["loss_scale"]
        scale = float(np.nanmedian(scales)) if np.isfinite(scales).any() else 1.0
        if calls < ALIKE or not limit or scale <= 2 * FAR_ABOVE:
            continue
        return spec.make(
            severity="high",
            title=f"gradients are clipped while they are scaled: max_norm {limit:g} means "
            f"{limit / scale:.2g}",
            evidence=f"clip_grad_norm_ of rank {rank} was called {calls:,} times or more up to "
            f"step {events[-1]['step']} after scaler.scale(loss).backward() and before "
            f"scaler.unscale_(optimizer); the scale is {scale:,.0f}",
            fix="call scaler.unscale_(optimizer) before clip_grad_norm_",
            rank=everybody(view),
            site=(view.hello(rank).get("clip") or {}).get("site"),
            confidence=0.95,
            proof=Proof(
                statistic="calls of clip_grad_norm_ with gradients that are scaled",
                value=calls,
                threshold=ALIKE - 1,
                unit="calls",
                formula="scaled: since scaler.scale() without scaler.unscale_() or scaler.step()",
                inputs=(
                    Input("max_norm", float(limit), "", f"hello.clip.max_norm, rank {rank}"),
                    Input("scale", scale, "", f"median of steps.loss_scale, rank {rank}"),
                ),
            ),
        )
    return None


def _always_clipped(view: RunView, spec: Spec) -> Finding | None:
    rank, firsts, lasts, norms = gradient_norms(view, from_step=EARLY_STEPS)
    if len(norms):
        limit = (view.hello(rank).get("clip") or {}).get("max_norm")
    else:
        limit = None
    if not limit or len(norms) < ENOUGH_NORMS or lasts[-1] - firsts[0] + 1 < CLIP_STEPS:
        return None
    share, median = float((norms > limit).mean()), float(np.median(norms))
    if share <= CLIPPED_SHARE:
        return None
    states = (view.hello(rank).get("optimizer") or {}).get("state") or {}
    is_adaptive = not SIZES_OF_GRADIENTS.isdisjoint(states)
    far_above = FAR_ABOVE_ADAPTIVE if is_adaptive else FAR_ABOVE
    return spec.make(
        severity="medium" if median > far_above * limit else "info",
        title=f"gradients are clipped in {100 * share:.0f} % of the steps: "
        f"norm {median:.3g}, max_norm {limit:g}",
        evidence=f"of {len(norms):,} norms in steps {firsts[0]} to {lasts[-1]} of rank {rank}, "
        f"{100 * share:.0f} % exceed max_norm={limit:g}; their median is {median:.4g}, so a step "
        f"is scaled by {limit / median:.2g}",
        fix=f"{phrase(Facts(view, rank), 'clip', norm=_round(median))}, and a lower learning rate "
        "to match, unless steps of equal length are what you want",
        rank=everybody(view),
        site=(view.hello(rank).get("clip") or {}).get("site"),
        proof=Proof(
            statistic="share of gradient norms above max_norm",
            value=100 * share,
            threshold=100 * CLIPPED_SHARE,
            unit="%",
            formula=f"medium where median norm / max_norm > {far_above:g}",
            inputs=(
                Input("max_norm", float(limit), "", f"hello.clip.max_norm, rank {rank}"),
                Input(
                    "median norm", median, "", f"steps.grad_norm or device.grad_norm, rank {rank}"
                ),
                Input("norms", len(norms), "", f"steps {firsts[0]} to {lasts[-1]}"),
            ),
        ),
    )


def _round(value: float) -> str:
    return f"{value:.2g}"
