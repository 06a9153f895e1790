"""Gradients too large, always clipped, missing, never cleared, or too small to count."""

from __future__ import annotations

import numpy as np

from gputop_agent.contracts import Hello
from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.dead_networks import ALIKE
from gputop_analysis.findings.option import Option
from gputop_analysis.findings.pictures import LOSS, NORM
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.sites import called_from
from gputop_analysis.findings.told import Event, told
from gputop_analysis.mend import ByRule
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.series import picked
from gputop_analysis.spikes import stand_outs, steps_named
from gputop_analysis.text import counted, percent
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
        told_as = f"gradient norm jumps to {value:.3g}, {value / level:.0f} times its level"
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
"""Of optimizers that divide by the size of the gradients: to them a factor on all is nothing, and PPO
with Adam clips to a hundredth by default.
"""
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
    "the gradients; or gradients are clipped while a GradScaler has them scaled",
    fix="raise max_norm to about the usual norm, or lower the learning rate; unscale first",
    no_use="where steps of equal length are what is wanted",
    reads="steps.grad_norm against max_norm over 500 steps; calls between a GradScaler's scale and "
    "unscale_",
    silent="no clipping; fewer than 500 steps, unless scaled",
    traps="updates that are normalised on purpose",
    seen_on=CPU,
    pictures=(
        NORM,
        LOSS,
    ),
)
def always_clipped(view: RunView, spec: Spec) -> Finding | None:
    """Each step is scaled to the same length: the learning rate no longer means what it says."""
    return _clipped_while_scaled(view, spec) or _always_clipped(view, spec)


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


MUCH_WITHOUT = 0.01


@finding(
    id="NU08",
    name="parameters without gradient",
    family="numerics",
    cause="compute",
    trigger="parameters that the optimizer has and that want a gradient have none at three "
    "looks in a row, 20 steps or more apart; medium where they are more than 1 % of "
    "all, high where they are all of them; or the only optimizer lacks more than 1 % "
    "of what wants one; or at three looks in a row more than 1 % of what has one is in no "
    "optimizer that has stepped, and does not change",
    fix="use them in the loss, or set requires_grad=False and leave them out of the optimizer",
    explains=("NU07",),
    no_use="where the parameters are frozen for now on purpose",
    reads="parameters of the optimizer whose gradient is None, at looks 20 steps or more apart",
    silent="frozen parameters",
    traps="experts that no token was sent to",
    seen_on=CPU,
)
def without_gradient(view: RunView, spec: Spec) -> Finding | None:
    """Part of the model does not learn."""
    for rank, looks in told(view, "checkup").items():
        look = looks[-1]
        missing, total = look.get("without_gradient") or 0, look.get("trainable") or 0
        if not missing or not total or look.get("alike", 0) < ALIKE:
            continue
        optimizer = view.hello(rank).get("optimizer") or {}
        if missing == total and optimizer.get("module") not in ("torch", None):
            continue  # an optimizer that is not torch's may have gradients of its own
        return _without_gradient(view, spec, rank, look)
    return _left_out(view, spec)


def _without_gradient(view: RunView, spec: Spec, rank: int, look: Event) -> Finding:
    missing, total = look["without_gradient"], look["trainable"]
    share = missing / total
    names = [
        name or "a parameter of no module" for name in look.get("without_gradient_names") or [""]
    ]
    config = (view.hello(rank).get("model") or {}).get("config") or {}
    severity: Severity = "info"
    fix = (
        "use them in the loss, or call requires_grad_(False) and leave them out of the "
        "optimizer; look for a detach(), a torch.no_grad() or a branch that is not taken"
    )
    if share == 1:
        severity = "high"
        fix = (
            "give the optimizer the parameters of the model that the loss comes from: it has "
            "others, such as a copy's"
        )
    elif share > MUCH_WITHOUT and not config.get("experts"):
        severity = "medium"  # experts that no token was sent to have none either
    return spec.make(
        severity=severity,
        title=f"{_part(missing, total)} no gradient: {', '.join(names[:2])}",
        evidence=f"{missing:,} of {total:,} values in the optimizer have grad None when it "
        f"steps ({look['alike']} looks up to step {look['step']}, rank {rank}): "
        f"{', '.join(names)}",
        fix=fix,
        rank=rank if len(view.ranks) > 1 else everybody(view),
        proof=Proof(
            statistic="values without a gradient / values in the optimizer that want one",
            value=100 * share,
            threshold=0.0,
            unit="%",
            formula="medium above 1 %, high for all of them",
            inputs=(
                Input(
                    "without a gradient",
                    missing,
                    "values",
                    f"checkup event of step {look['step']}, rank {rank}",
                ),
                Input("in the optimizer", total, "values", "the same"),
                Input("looks in a row", look["alike"], "", "the same"),
            ),
        ),
    )


def _left_out(view: RunView, spec: Spec) -> Finding | None:
    """Parameters that want a gradient, and that no optimizer was given: they are never updated."""
    for rank in view.ranks:
        hello = view.hello(rank)
        model, optimizer = hello.get("model") or {}, hello.get("optimizer") or {}
        trainable = int(model.get("trainable") or 0)
        given_count = int(optimizer.get("all_parameters") or optimizer.get("parameters") or 0)
        other_parameters = optimizer.get("others") or []
        if (
            not _comparable(hello)
            or not given_count
            or _once_given(view, rank, trainable)
            or trainable - given_count <= MUCH_WITHOUT * trainable
            or not _gradients_beyond(view, rank, given_count + MUCH_WITHOUT * trainable)
        ):
            continue
        share = 1 - given_count / trainable
        return spec.make(
            severity="high" if share > 0.5 else "medium",
            title=f"{100 * share:.0f} % of the parameters that want a gradient are in no optimizer",
            evidence=f"{model.get('class') or 'the model'} has {trainable:,} values with "
            "requires_grad=True, "
            f"{' and '.join([str(optimizer.get('class')), *other_parameters])} "
            + (f"have {given_count:,} together" if other_parameters else f"has {given_count:,}")
            + ", and no other optimizer steps: the rest stays as it was made",
            fix="give the optimizer model.parameters(); if the rest shall stay as it is, call "
            "requires_grad_(False) on it, which saves its part of the backward pass too",
            rank=rank if len(view.ranks) > 1 else everybody(view),
            site=optimizer.get("site"),
            confidence=0.8,
            proof=Proof(
                statistic="values that want a gradient and are in no optimizer / values that want "
                "one",
                value=100 * share,
                threshold=100 * MUCH_WITHOUT,
                unit="%",
                formula="",
                inputs=(
                    Input("want a gradient", trainable, "values", "hello.model.trainable"),
                    Input("in the optimizer", given_count, "values", "hello.optimizer.parameters"),
                ),
            ),
        )
    return _for_nobody(view, spec)


def _once_given(view: RunView, rank: int, trainable: int) -> bool:
    """Whether an optimizer of an earlier stage of the script had them, as that of a teacher that is
    trained first.
    """
    told_optimizers = [
        event.get("optimizer") or {}
        for kind in ("hello", "hello_update")
        for event in told(view, kind).get(rank, ())
    ]
    given = [
        int(one.get("all_parameters") or one.get("parameters") or 0) for one in told_optimizers
    ]
    return max(given, default=0) >= (1 - MUCH_WITHOUT) * trainable


def _gradients_beyond(view: RunView, rank: int, count: float) -> bool:
    """Whether more values have a gradient than so many, or nobody looked.

    A copy that only answers without a graph, as a target network does, has none and needs no
    optimizer.
    """
    looks = [event for event in told(view, "checkup").get(rank, ()) if "graded" in event]
    return not looks or (looks[-1].get("graded") or 0) > count


def _for_nobody(view: RunView, spec: Spec) -> Finding | None:
    """Parameters that get gradients, lie in no optimizer that has stepped, and stay as they are: a
    teacher that was not frozen, or an optimizer whose step is forgotten.
    """
    for rank, events in told(view, "checkup").items():
        last = events[-1]
        stray, graded = last.get("stray") or 0, last.get("graded") or 0
        if last.get("stray_looks", 0) < ALIKE or stray <= MUCH_WITHOUT * graded:
            continue
        share, names = stray / graded, last.get("stray_names") or []
        idle = last.get("without_gradient") or 0
        if last.get("stray_waiting", 0) > stray / 2:
            title = f"an optimizer has not stepped: {100 * share:.0f} % of the gradients are unused"
            place = "in an optimizer that has not stepped"
            fix = (
                "call step() of the optimizer that has them; where it begins later, "
                "requires_grad_(False) until then spares their backward"
            )
        else:
            title = f"{100 * share:.0f} % of the gradients are for nobody"
            place = "in no optimizer"
            fix = _replaced_part(names) if idle else _not_frozen()
        return spec.make(
            severity="medium",
            title=f"{title}: {', '.join(names[:2])}",
            evidence=f"{stray:,} of {graded:,} values that have a gradient are {place} and did "
            f"not change ({last['stray_looks']} looks in a row up to step {last['step']}, rank "
            f"{rank}): "
            + ", ".join(names)
            + (f"; the optimizer holds {idle:,} values that get no gradient" if idle else ""),
            fix=fix,
            rank=rank if len(view.ranks) > 1 else everybody(view),
            confidence=0.85,
            proof=Proof(
                statistic=f"values with a gradient and {place} / values with a gradient",
                value=100 * share,
                threshold=100 * MUCH_WITHOUT,
                unit="%",
                formula="unchanged: up to 64 values of eight of them, from look to look",
                inputs=(
                    Input(place, stray, "values", f"checkup event, rank {rank}"),
                    Input("with a gradient", graded, "values", "the same"),
                    Input("looks in a row", last["stray_looks"], "", "the same"),
                ),
            ),
        )
    return None


def _part(missing: int, total: int) -> str:
    if 1000 * missing < total:  # "0.0 %" would say nothing
        verb = "gets" if missing == 1 else "get"
        return f"{counted(missing, 'value')} of {total:,} in the optimizer {verb}"
    return f"{100 * missing / total:.1f} % of the parameters get"


def _not_frozen() -> str:
    return (
        "call requires_grad_(False) on what shall stay as it is, such as a teacher or a network "
        "that a loss looks through: the backward then leaves its weights out; or give it to an "
        "optimizer"
    )


def _replaced_part(names: list[str]) -> str:
    """A layer that was put in the place of another after the optimizer was given that one's."""
    return (
        f"make the optimizer after the model is complete, or give it {', '.join(names[:2])} by "
        "add_param_group(): it holds parameters that the loss does not come from; if they shall "
        "stay as they are, call requires_grad_(False) on them"
    )


def _comparable(hello: Hello) -> bool:
    """Whether model and optimizers count the same parameters: a whole model, torch's optimizers."""
    model, optimizer, parallel = (
        hello.get(key) or {} for key in ("model", "optimizer", "parallel")
    )
    sharded = model.get("sharded") or any(
        parallel.get(wrapper) for wrapper in ("fsdp", "deepspeed", "pipeline")
    )
    counted = "all_parameters" in optimizer or not optimizer.get("others")
    alone = optimizer.get("module") == "torch" and counted
    return (
        alone and not sharded and not model.get("truncated") and len(model.get("roots") or ()) == 1
    )


@finding(
    id="NU11",
    name="gradients never cleared",
    family="numerics",
    cause="nan",
    trigger="at three looks in a row, 20 steps or more apart, gradients are not zero when the "
    "first backward after an update begins",
    fix="optimizer.zero_grad() once a step",
    explains=("NU02", "NU03", "NU05", "NU07", "ME09"),
    no_use="where gradients of the whole run are summed on purpose; where a trainer clears them",
    reads=(
        "whether gradients are zero when the first backward after an update begins, at looks 20 "
        "steps or more apart; of several optimizers, whether they are at any backward between two "
        "updates"
    ),
    silent="fewer than three looks",
    traps="gradient accumulation",
    seen_on=CPU,
    pictures=(
        NORM,
        LOSS,
    ),
)
def never_cleared(view: RunView, spec: Spec) -> Finding | None:
    """Without zero_grad() each step adds its gradient to those of all steps before."""
    for rank, events in told(view, "checkup").items():
        last = events[-1]
        if not last.get("stale") or last.get("alike", 0) < ALIKE:
            continue
        norms = gradient_norms(view)[-1]
        if len(norms) > 1:
            grown = f"; the gradient norm went from {norms[0]:.3g} to {norms[-1]:.3g}"
        else:
            grown = ""
        return spec.make(
            severity="high",
            title="gradients are never cleared: each step adds to those of all steps before",
            evidence="gradients of the step before are not zero when the first backward after an "
            f"update begins ({last['alike']} looks up to step {last['step']}, rank {rank}){grown}",
            fix=Option(
                "call optimizer.zero_grad() after optimizer.step()", mend=ByRule("no-zero-grad")
            ),
            rank=rank if len(view.ranks) > 1 else everybody(view),
            site=called_from(view, "backward", rank) or last.get("backward_at"),
            confidence=0.95,
            proof=Proof(
                statistic="looks in a row at which gradients were not zero before the "
                "first backward after an update",
                value=last["alike"],
                threshold=ALIKE - 1,
                unit="looks",
                formula="eight gradients, 4096 values of each, are compared with zero",
                inputs=(Input("last look", last["step"], "step", f"checkup event, rank {rank}"),),
            ),
        )
    return _one_never_cleared(view, spec)


def _one_never_cleared(view: RunView, spec: Spec) -> Finding | None:
    """One of several optimizers: all backwards between two of its updates added to old gradients."""
    for rank, events in told(view, "uncleared").items():
        last = events[-1]
        return spec.make(
            severity="high",
            title=f"gradients of {last['optimizer']} are never cleared: each update adds to all "
            "before",
            evidence=f"all {last['backwards']} backwards between two updates of "
            f"{last['optimizer']}, one of several optimizers, began with what its update before "
            f"had used, and added to it ({last['looks']} looks in a row up to step "
            f"{last['step']}, rank {rank})",
            fix="call zero_grad() of this optimizer, too, before the backward of its loss",
            rank=rank if len(view.ranks) > 1 else everybody(view),
            site=called_from(view, "backward", rank) or last.get("backward_at"),
            confidence=0.95,
            proof=Proof(
                statistic="looks in a row at which no backward between two updates began without "
                "gradients",
                value=last["looks"],
                threshold=ALIKE - 1,
                unit="looks",
                formula="eight gradients, 4096 values of each; the same tensors at both updates",
                inputs=(
                    Input("last look", last["step"], "step", f"uncleared event, rank {rank}"),
                    Input("backwards between two updates", last["backwards"], "", "the same"),
                ),
            ),
        )
    return None


STUCK_SHARE, LOOKS = 0.90, 3


@finding(
    id="NU12",
    name="updates vanish in bf16",
    family="numerics",
    cause="compute",
    trigger=f"in three looks in a row an update leaves more than {percent(STUCK_SHARE)} of the "
    "sampled bf16 values that have a gradient as they were: it is below half a unit in the last "
    "place, 2^-9 of the value",
    fix="weights in float32 with autocast, or an optimizer with stochastic rounding or "
    "float32 master weights",
    no_use="where the weights may not be larger",
    reads="values of a sampled bfloat16 tensor before and after an update",
    silent="weights that are not bfloat16; fewer than three looks",
    traps="the end of a decay, frozen layers",
    seen_on=CPU,
)
def vanishing_updates(view: RunView, spec: Spec) -> Finding | None:
    """bf16 keeps 8 bits: a relative change below 2^-9 is rounded away."""
    for rank, events in told(view, "checkup").items():
        shares = [share for event in events[-LOOKS:] if (share := _stuck(event)) is not None]
        optimizer = view.hello(rank).get("optimizer") or {}
        foreign = optimizer.get("module") not in ("torch", None) or "compensation" in (
            optimizer.get("state") or {}
        )
        lr = events[-1].get("lr_max") or 0.0
        if len(shares) < LOOKS or min(shares) <= STUCK_SHARE or lr <= 0 or foreign:
            continue
        share = float(np.median(shares))
        return spec.make(
            severity="medium",
            title=f"updates vanish: {100 * share:.0f} % of the bf16 weights do not change in a "
            "step",
            evidence=f"of the sampled values with a gradient, {100 * share:.1f} % were the same "
            f"after the update (median of {len(shares)} looks up to step {events[-1]['step']}, "
            f"rank {rank}, lr {lr:.3g})",
            fix="keep the weights in float32 and use torch.autocast(..., dtype=torch.bfloat16), "
            "or an optimizer with stochastic rounding, or raise the learning rate",
            rank=rank if len(view.ranks) > 1 else everybody(view),
            confidence=0.85,
            proof=Proof(
                statistic="smallest share of unchanged values in the last three looks",
                value=100 * min(shares),
                threshold=100 * STUCK_SHARE,
                unit="%",
                formula="share = values equal before and after the update / values with "
                "a gradient that is not zero",
                inputs=(
                    Input(
                        "values compared",
                        int(events[-1]["bf16_pushed"]),
                        "",
                        f"checkup event, rank {rank}",
                    ),
                    Input("unchanged", int(events[-1]["bf16_stuck"]), "", "the same"),
                    Input("learning rate", float(lr), "", "the same, largest over the groups"),
                ),
            ),
        )
    return None


def _stuck(event: Event) -> float | None:
    pushed = event.get("bf16_pushed") or 0
    return event["bf16_stuck"] / pushed if pushed >= 100 else None
