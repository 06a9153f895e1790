"""What a training is steered by: its learning rate and its loss scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gputop_agent import wire
from gputop_analysis.findings.advice import BFLOAT16, OWN_LOOP, Option
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.origins import WATCH, sentence, skipped_origin
from gputop_analysis.findings.numerics.rare_schedules import RARELY, rarely_stepped
from gputop_analysis.findings.numerics.wrong_habits import optimizer_site, schedule_site, standing
from gputop_analysis.findings.pictures import LOSS, RATE, SCALE
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import parameter_names, stage_begins, told
from gputop_analysis.mend import ByRule
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import RankSeries
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView

AFTER_STEP, ENOUGH_STEPS, SKIP_SHARE = 200, 50, 0.05
IN_A_ROW = 30
"""No search for a scale skips so many updates in a row: it begins at 2^16 and halves."""


@dataclass(frozen=True, slots=True)
class _Skips:
    """Updates that a rank's GradScaler skipped, in the steps that it is judged by."""

    share: float
    skipped: int
    steps: int
    rank: int
    scale: float
    """The last one; NaN: not known."""
    from_step: int


@finding(
    id="NU04",
    name="GradScaler keeps skipping",
    family="numerics",
    cause="nan",
    trigger=f"more than {percent(SKIP_SHARE)} of the steps after step {AFTER_STEP} are skipped, "
    f"or the last {IN_A_ROW} or more, or the loss scale falls below 1",
    fix="bf16 instead of fp16, a lower learning rate, gradient clipping after unscale_",
    explains=("CE03",),
    no_use="bf16: on a GPU that has none (before Ampere); unscale_: where a trainer clips",
    reads="skipped updates and steps.loss_scale of GradScaler",
    silent="no scaler; the first 200 steps",
    traps="the scaler's search at start",
    seen_on=CPU,
    pictures=(
        SCALE,
        LOSS,
    ),
)
def scaler_skips(view: RunView, spec: Spec) -> Finding | None:
    """Gradients overflow again and again, and those steps are lost."""
    all_skips = [skips for rank in view.ranks if (skips := _skips(view, rank))]
    worst = max(all_skips, key=lambda skips: skips.share, default=None)
    if worst is None:
        return None
    share, scale = worst.share, worst.scale
    collapsed = bool(np.isfinite(scale) and scale < 1)
    if share <= SKIP_SHARE and not collapsed:
        return None
    if share > SKIP_SHARE:
        statistic = "skipped updates / steps"
        value, threshold, unit = (100 * share, 100 * SKIP_SHARE, "%")
    else:
        statistic = "loss scale; raised below the threshold"
        value, threshold, unit = (scale, 1.0, "")
    scale_text = f", loss scale now {scale:g}" if np.isfinite(scale) else ""
    origin = skipped_origin(view)
    if share < 1:
        fix = (
            Option("use torch.bfloat16 and no scaler", needs=(BFLOAT16,), assumes=False),
            "lower the learning rate",
            Option("clip after scaler.unscale_(optimizer)", needs=(OWN_LOOP,), assumes=False),
        )
    else:
        fix = (
            f"find the infinite or NaN gradient: {WATCH} names the layer and the operation that "
            "make it; nothing has been learnt since then"
        )
    return spec.make(
        severity="high" if share > 0.25 or collapsed else "medium",
        title=f"GradScaler skips {100 * share:.0f} % of the updates{scale_text}",
        evidence=f"{worst.skipped:,} of {worst.steps:,} steps from step {worst.from_step} on of "
        f"rank {worst.rank} made no update, because a gradient was infinite or NaN{scale_text}"
        + (f"; {sentence(origin, len(view.ranks))}" if origin else ""),
        fix=fix,
        rank=worst.rank if len(view.ranks) == 1 else None,
        proof=Proof(
            statistic=statistic,
            value=float(value),
            threshold=threshold,
            unit=unit,
            formula="a step is skipped where GradScaler.step ends without a step of the optimizer",
            inputs=(
                Input(
                    "skipped",
                    worst.skipped,
                    "steps",
                    f"steps.flags and steps.optimizer_steps, rank {worst.rank}",
                ),
                Input("steps", worst.steps, "", f"from step {worst.from_step} on"),
                Input("loss scale", scale, "", "steps.loss_scale, the last"),
            ),
        ),
    )


def _skips(view: RunView, rank: int) -> _Skips | None:
    """None where nothing is scaled or too few steps are there."""
    series = view.per_rank[rank]
    if (view.hello(rank).get("amp") or {}).get("grad_scaler") is False:
        return None
    late = series.steps >= AFTER_STEP
    late[: series.attempt_start] = False
    if (counted := _counted_skips(series, late)) is not None and counted.steps >= ENOUGH_STEPS:
        return counted
    updated = np.flatnonzero(series.rows["optimizer_steps"] > 0)
    without = np.arange(len(series.rows)) > max(
        updated[-1] if len(updated) else -1, series.attempt_start - 1
    )
    counted = _counted_skips(series, without)
    if counted is not None and counted.skipped >= IN_A_ROW:
        return counted
    return None


def _counted_skips(series: RankSeries, mask: Array) -> _Skips | None:
    """What the masked records tell; None where nothing in them was scaled."""
    flagged = mask & ((series.rows["flags"] & wire.F_SCALER_SKIP) != 0)
    scales = series.rows["loss_scale"][mask]
    scales = scales[np.isfinite(scales)]
    if not (flagged.any() or len(scales)):
        return None
    missing = series.n_steps[flagged] - series.rows["optimizer_steps"][flagged].astype(np.int64)
    skipped = int(np.clip(missing, 1, series.n_steps[flagged]).sum())
    steps, scale = (
        int(series.n_steps[mask].sum()),
        float(scales[-1]) if len(scales) else float("nan"),
    )
    first = int(np.argmax(mask))
    from_step = int(series.steps[first] - series.n_steps[first]) + 1
    return _Skips(skipped / steps, skipped, steps, series.rank, scale, from_step)


ZERO_STEPS, ZERO_SHARE = 50, 0.02
VANISHED = 2.0**-24
"""Of the largest learning rate: a million steps of this size are less than one of the largest."""
FADED, FADED_STEPS, FADED_SHARE = 2.0**-13, 100, 0.5
"""The same where half of the run has it: no schedule that is meant spends half of a run so low."""
RESTING_LOOKS = 3
"""So many looks in a row must have found a group with a rate of 0."""
MUCH_RESTING = 0.01
"""Of the values in the optimizer, in groups with a learning rate of 0."""
PEAK_RECORDS = 1500
"""Evenly spread over the whole run, where its largest learning rate is looked for."""


@finding(
    id="NU06",
    name="learning rate is zero",
    family="numerics",
    cause="compute",
    trigger="the learning rate of all groups is 0, negative or below 2^-24 of the largest it was, "
    f"for the last {ZERO_STEPS} steps and {percent(ZERO_SHARE)} of the run, or below 2^-13 of it "
    f"for the last {FADED_STEPS} steps and {percent(FADED_SHARE)} of the newest optimizer's "
    "(medium); or that of "
    f"groups with more than {percent(MUCH_RESTING)} of the values is 0 at three looks in a row, "
    "20 steps or more apart, while others learn (medium); or OneCycleLR or CyclicLR is stepped "
    f"once in {RARELY} updates or more (medium); or torch has warned that the scheduler steps "
    "before the optimizer (info)",
    fix="a schedule as long as the run; scheduler.step() after optimizer.step(), once for "
    "each of its units",
    no_use="where the training is meant to end there",
    reads="steps.lr, rates of the groups at the looks of NU08, torch's own warning about the order",
    silent="the learning rate is not read",
    traps="the warm-up's first step; layers that are to be thawed later",
    seen_on=CPU,
    pictures=(
        RATE,
        LOSS,
    ),
)
def learning_rate_zero(view: RunView, spec: Spec) -> Finding | None:
    """Steps that change nothing."""
    for rank in view.ranks:
        gone = _vanished(view, rank, VANISHED)
        least_steps = max(ZERO_STEPS, ZERO_SHARE * gone.last_step) if gone else 0
        if gone is None or gone.steps < least_steps:
            gone = _vanished(view, rank, FADED)
            of_stage = gone.last_step - stage_begins(view, rank) if gone else 0
            least_steps = max(FADED_STEPS, FADED_SHARE * of_stage)
        if gone is None or gone.steps < least_steps:
            continue
        value = "0" if gone.now == 0 else f"{gone.now:.2g}"
        if gone.peak > 0:
            before = f"it was {gone.peak:.3g} at most"
        else:
            before = "it was never above 0"
        since = f"since step {gone.since}{'' if gone.exact else ' at the latest'}"
        fix = (
            "the schedule is shorter than the run, or is stepped once a batch where it counts "
            "epochs: set its total steps to the run's, and a floor above 0"
        )
        often, lines = _stepped_often(view, rank)
        if often:
            before += (
                f"; the schedule goes on {often:.1f} times an update, by {' and '.join(lines)}"
            )
            fix = (
                "step the schedule once an update, or give it as many more steps in all: "
                "accelerate steps a prepared one once for each rank"
            )
        if gone.peak <= 0:
            fix = _never_stepped(Facts(view, rank))
        if gone.now < 0:
            title = f"the learning rate is negative {since}: each update makes the loss larger"
            fix = "the schedule goes on below 0 after its end: give it a floor, and the run's steps"
        elif gone.now == 0:
            title = f"the learning rate is 0 {since}: nothing is learnt"
        else:
            title = f"the learning rate is as good as 0 {since}: nothing is learnt"
        return spec.make(
            severity="high" if gone.limit == VANISHED else "medium",
            title=title,
            evidence=f"lr is {value} after {gone.steps:,} steps of rank {rank} with less than "
            f"{gone.limit:.0e} of the largest; " + before,
            fix=fix,
            rank=everybody(view),
            site=lines[0] if lines else schedule_site(view, rank, begins=gone.peak <= 0),
            proof=Proof(
                statistic="steps at the end with a learning rate of at most "
                f"2^{math.log2(gone.limit):.0f} of the largest",
                value=gone.steps,
                threshold=least_steps,
                unit="steps",
                formula="threshold = max(50 steps, 2 % of the steps done) at 2^-24 of the largest, "
                "max(100 steps, half of the steps done) at 2^-13",
                inputs=(
                    Input("largest lr", gone.peak, "", f"steps.lr, rank {rank}"),
                    Input("lr now", gone.now, "", f"steps.lr, rank {rank}"),
                    Input("last step", gone.last_step, "", f"steps.step, rank {rank}"),
                ),
            ),
        )
    return _resting(view, spec) or rarely_stepped(view, spec) or _misordered(view, spec)


def _stepped_often(view: RunView, rank: int) -> tuple[float, list[str]]:
    """How often an update's schedule is stepped, and by which lines; 0 where it is as it should
    be.
    """
    for look in reversed(told(view, "checkup").get(rank, ())):
        if look.get("rate_steps"):
            return float(look["rate_steps"]), list(look.get("rate_stepped_at") or ())
    return 0.0, []


def _never_stepped(run: Facts) -> str:
    """What to do about a rate that is where its schedule begins."""
    by_update = "call scheduler.step() after each optimizer.step()"
    if run.trainer == "lightning":
        by_update = 'return {"scheduler": ..., "interval": "step"} from configure_optimizers()'
    return (
        "the schedule begins at 0 and has not gone on, as one that counts steps does where it is "
        f"stepped once an epoch: {by_update}, or begin the warm-up above 0"
    )


def _resting(view: RunView, spec: Spec) -> Finding | None:
    """Groups of parameters with a learning rate of 0, beside others that learn."""
    for rank, looks in told(view, "checkup").items():
        last = looks[-1]
        resting, total = last.get("resting") or 0, last.get("trainable") or 0
        in_a_row = standing(looks, lambda look: look.get("resting"))
        if in_a_row < RESTING_LOOKS or not total or resting <= MUCH_RESTING * total:
            continue
        names = parameter_names(last.get("resting_names") or [""])
        return spec.make(
            severity="medium",
            title=f"the learning rate of {100 * resting / total:.0f} % of the parameters is 0: "
            f"{', '.join(names[:2])}",
            evidence=f"{resting:,} of {total:,} values in the optimizer have gradients and are in "
            f"groups with lr=0, at {in_a_row} looks in a row up to step {last['step']} of rank "
            f"{rank}, while other groups have {last.get('lr_max') or 0:.3g}: {', '.join(names)}",
            fix="give that group a learning rate; if it shall stay as it is, call "
            "requires_grad_(False) on it, which saves its part of the backward",
            rank=everybody(view),
            site=optimizer_site(view, rank),
            proof=Proof(
                statistic="values in groups with a learning rate of 0 / values in the optimizer",
                value=100 * resting / total,
                threshold=100 * MUCH_RESTING,
                unit="%",
                formula="groups whose parameters have gradients",
                inputs=(
                    Input("in such groups", resting, "values", f"checkup event, rank {rank}"),
                    Input("in the optimizer", total, "values", "the same"),
                    Input("looks in a row", in_a_row, "", "the same"),
                ),
            ),
        )
    return None


@dataclass(frozen=True, slots=True)
class _Vanished:
    """A rate that is nothing beside its largest, from the step ``since`` on, or where a record of
    several steps tells it (``exact`` is false), at the latest from there on.
    """

    since: int
    exact: bool
    last_step: int
    now: float
    peak: float
    limit: float
    """Of the largest rate, below which it is."""

    @property
    def steps(self) -> int:
        """How many steps it surely lasts."""
        return self.last_step - self.since + 1


def _vanished(view: RunView, rank: int, limit: float) -> _Vanished | None:
    """The rate of a rank where it ends below ``limit`` of its largest."""
    series = view.per_rank[rank]
    rates = series.rows["lr"][series.attempt_start :]
    if not len(rates) or not np.isfinite(rates[-1]):
        return None
    every = view.record.steps(rank)["lr"]
    spread_rates = np.asarray(every[:: max(1, len(every) // PEAK_RECORDS)])
    peak = max(
        (float(np.nanmax(part)) for part in (rates, spread_rates) if np.isfinite(part).any()),
        default=0.0,
    )
    learns = np.flatnonzero(~(rates <= limit * peak))
    begin = int(learns[-1]) + 1 if len(learns) else 0
    if begin == len(rates) or _other_groups_learn(view, rank, series, begin=begin, limit=limit):
        return None
    first = series.attempt_start + begin
    return _Vanished(
        since=int(series.steps[first]),
        exact=bool(series.n_steps[first] == 1),
        last_step=int(series.steps[-1]),
        now=float(rates[-1]),
        peak=peak,
        limit=limit,
    )


def _other_groups_learn(
    view: RunView, rank: int, series: RankSeries, *, begin: int, limit: float
) -> bool:
    """Whether groups beside the first may learn since the record ``begin`` of the last attempt.

    Rows have the first group's rate, or where that is 0 the largest; looks have the largest.
    """
    if (view.hello(rank).get("optimizer") or {}).get("groups", 1) <= 1:
        return False
    looks = [look for look in told(view, "checkup").get(rank, ()) if look.get("lr_max") is not None]
    since = series.steps[series.attempt_start + begin]
    later = [float(look["lr_max"]) for look in looks if look.get("step", 0) > since]
    if later:
        return later[-1] > limit * max(float(look["lr_max"]) for look in looks)
    return float(series.rows["lr"][-1]) != 0


def _misordered(view: RunView, spec: Spec) -> Finding | None:
    for rank, looks in told(view, "checkup").items():
        scaled = (view.hello(rank).get("amp") or {}).get("grad_scaler")
        if any(look.get("scheduler_first") for look in looks) and not scaled:
            # a skipped first step makes torch warn too
            return spec.make(
                severity="info",
                title="the scheduler steps before the optimizer: the first learning rate is "
                "skipped",
                evidence=f"torch has warned of it in the process of rank {rank}",
                fix=Option(
                    "call scheduler.step() after optimizer.step()", mend=ByRule("scheduler-first")
                ),
                rank=everybody(view),
                proof=Proof(
                    statistic="torch's warning 'Detected call of `lr_scheduler.step()` before "
                    "`optimizer.step()`'",
                    value=1,
                    threshold=0,
                    unit="warnings",
                    formula="the warning lies in a module's __warningregistry__",
                    inputs=(Input("seen", 1, "", f"checkup event, rank {rank}"),),
                ),
            )
    return None
