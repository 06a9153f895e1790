"""Host and Python: training stands still for a checkpoint or an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from gputop_agent import wire
from gputop_analysis.ending import ended_well
from gputop_analysis.findings.advice import OWN_LOOP, SEVERAL_RANKS, Option, at_least
from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.host.rhythm import in_cycles
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import Share, most_of, only_on, whole_share, worst
from gputop_analysis.findings.site import ENOUGH, Site, named
from gputop_analysis.findings.sites import (
    loop_of_evaluation,
    samples_where,
    top_site,
    trainers_call,
)
from gputop_analysis.model import Finding, Input
from gputop_analysis.series import RankSeries
from gputop_analysis.text import counted, percent
from gputop_analysis.view import Array, RunView

RARER = 10
"""Evaluations are asked to happen so many times less often; that wins 1 - 1/10 of their time."""
CHEAP = 0.01
"""What checkpoints may cost of the time where nothing is known of failures."""


SAVING = 0.03
"""Share of the time that goes to checkpoints."""


@finding(
    id="HO07",
    name="checkpoint stall",
    family="host",
    cause="host",
    trigger=f"checkpoints take more than {percent(SAVING)} of the time (lower end of the 95 % "
    "interval), or one takes 20 steps' time",
    fix="save less often, asynchronously, or sharded",
    no_use="async_save: without a process group, before torch 2.3, or where a trainer saves",
    reads="steps.checkpoint_ns, checkpoint events",
    silent="no checkpoint in the window",
    traps="the last checkpoint of a run",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(phases("checkpoint"),),
)
def checkpoint_stall(view: RunView, spec: Spec) -> Finding | None:
    """Training stands still while a checkpoint is written."""
    shares = _shares(view, "checkpoint_ns")
    saved = worst(shares)
    if saved is None or saved.mean_ms <= 0:
        return None
    series = view.per_rank[saved.rank]
    longest_ms = float(series.rows["checkpoint_ns"].max()) / 1e6
    step_ms = float(np.median(series.wall_ms))
    is_share, is_long = saved.surely_above(SAVING), longest_ms > max(20 * step_ms, 200.0)
    if not is_share and not is_long:
        return None
    events = list(view.events("checkpoint", rank=saved.rank))
    count = len(events) or int(np.count_nonzero(series.rows["checkpoint_ns"]))
    every = _usual_distance(series, "checkpoint_ns", count)
    rarer, why = _better_interval(view, _cost_ms(saved), step_ms, every)
    won, run = 1 - every / rarer, Facts(view, saved.rank)
    if is_share:
        severity = "high" if saved.share.low > 0.20 else "medium"
    else:
        severity = "info"
    last = ""
    if events:
        last = f"; last one: {events[-1].get('path')} by {events[-1].get('via', 'torch.save')}"
    return spec.make(
        severity=severity,
        title=f"checkpoints take {saved.share.value * 100:.1f} % of the time, the longest "
        f"{longest_ms:,.0f} ms",
        evidence=f"{counted(count, 'checkpoint')}, {_about(every)}: "
        f"{saved.ms.value:.1f} ms of {saved.wall_ms:.1f} ms a step, {saved.percent}; the longest "
        f"took {longest_ms / max(step_ms, 1e-9):.0f} times a step{last}",
        fix=(
            f"{phrase(run, 'save', every=rarer, now=every)} ({why})",
            Option(
                "torch.distributed.checkpoint.async_save, which writes while the training goes on",
                needs=(SEVERAL_RANKS, OWN_LOOP, at_least("torch", 2, 3)),
                promises=False,
            ),
        ),
        rank=only_on(saved, shares),
        site=_saved_at(events) or trainers_call(view, saved.rank),
        recoverable_ms_per_step=saved.ms.value * won,
        interval_ms_per_step=(saved.ms.low * won, saved.ms.high * won),
        proof=saved.proof(
            "checkpoints",
            SAVING,
            "steps.checkpoint_ns",
            f"recoverable = checkpoint time x (1 - {every} / {rarer}), the interval in steps now "
            f"and then: {why}",
            Input(
                "longest checkpoint",
                longest_ms,
                "ms",
                "steps.checkpoint_ns, judged against 20 steps and 200 ms",
            ),
            Input("checkpoints", count, "", "checkpoint events"),
        ),
    )


def _shares(view: RunView, column: str) -> list[Share | None]:
    """Of the ranks that spend most time on it."""
    return [_in_cycles(view, rank, lambda rows: rows[column]) for rank in most_of(view, column)]


def _in_cycles(view: RunView, rank: int, nanoseconds: Callable[[Array], Array]) -> Share | None:
    share = whole_share(view, rank, nanoseconds)
    return share and in_cycles(share)


def _saved_at(events: list[dict[str, Any]]) -> str | None:
    """The line that most of the time was spent saving at; None where a trainer saves."""
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("site"):
            spent[str(event["site"])] += round(1e3 * float(event.get("duration_ms") or 0.0))
    return spent.most_common(1)[0][0] if spent else None


def _better_interval(view: RunView, cost_ms: float, step_ms: float, every: int) -> tuple[int, str]:
    """Steps between two checkpoints, and why so many.

    Where failures are known, sqrt(2 x cost x mean time between failures) (Young 1974; Daly 2006
    adds terms that vanish for a cost far below that time). Else what keeps the cost below 1 % of
    the time. At least twice the interval of now.
    """
    failures = sum(1 for _ in view.record.events("rank_lost")) or sum(
        int(event.get("attempt") or 0) > 0 for event in view.record.events("rank_start")
    )
    rows = view.per_rank[view.ranks[0]].rows
    ran_ms = float(rows["t_end_ns"][-1] - rows["t_end_ns"][0]) / 1e6
    if failures:
        best_ms = max(0.0, 2 * cost_ms * ran_ms / failures) ** 0.5
        why = f"Young's interval at one failure in {ran_ms / failures / 6e4:,.0f} minutes"
    else:
        best_ms = cost_ms / CHEAP
        why = f"then it costs {100 * CHEAP:.0f} %"
    return max(2 * every, _rounded_up(best_ms / max(step_ms, 1e-6))), why


def _cost_ms(saved: Share) -> float:
    """Of one checkpoint, the mean."""
    return float(saved.values_ms.sum()) / max(1, int(np.count_nonzero(saved.values_ms)))


def _rounded_up(steps: float) -> int:
    """To one leading digit: nobody saves every 1,337 steps."""
    unit = 10 ** max(0, int(np.floor(np.log10(max(steps, 1)))))
    return int(np.ceil(steps / unit) * unit)


EVALUATING = 0.15
"""Share of the time in evaluations."""
FEW_STEPS = 5
"""Steps between two pauses, below which whole steps are too coarse for a median."""
USUALLY = 0.95
"""Quantile of what the code around steps without an evaluation takes."""
_STEPS_OF_TRAINERS = (
    *("validation_step", "test_step", "predict_step", "forward", "__call__", "compute_loss"),
    *("prediction_step", "compute_metrics", "preprocess_logits_for_metrics"),
)
"""What trainers call in an evaluation of theirs."""
MUCH_AROUND = 1.2
"""Times the forwards that evaluate, from which on the rest is told apart."""


@finding(
    id="HO08",
    name="evaluation share",
    family="host",
    cause="host",
    trigger=f"evaluation takes more than {percent(EVALUATING)} of the time (lower end of the 95 % "
    "interval)",
    fix="evaluate less often, on fewer batches, or in larger ones",
    no_use="where the evaluations are needed as often",
    reads="steps.eval_ns, and what the steps with an evaluation have of other time above the usual",
    silent="no evaluation in the window; reinforcement learning, where forwards without gradients "
    "are those of a policy that acts, or of a target network",
    traps="an evaluation as long as intended",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(phases("eval"),),
)
def evaluation_share(view: RunView, spec: Spec) -> Finding | None:
    """A large part of the run is evaluation."""
    shares = [_evaluating(view, rank) for rank in most_of(view, "eval_ns")]
    spent = worst(shares)
    if spent is None or not spent.surely_above(EVALUATING) or Facts(view, spent.rank).acts:
        return None
    series = view.per_rank[spent.rank]
    count = max(1, int(np.count_nonzero(series.rows["eval_ns"] > 0)))
    every = _usual_distance(series, "eval_ns", count)
    site = top_site(view, "eval", rank=spent.rank)
    run = Facts(view, spent.rank)
    rarer = _rarer(view, series, every)
    saved_share = 1 - 1 / rarer
    forwards_ms = float(series.per_step_ms("eval_ns").mean())
    around = ""
    if spent.ms.value > MUCH_AROUND * forwards_ms:
        rest = top_site(view, "other", rank=spent.rank, all_work=True)
        around = f", of which {forwards_ms * every:,.0f} ms in the model"
        around += named(rest, ", other code mostly at {}")
    return spec.make(
        severity="high" if spent.share.low > 0.50 else "medium",
        title=f"evaluation takes {spent.share.value * 100:.0f} % of the time",
        evidence=f"{counted(count, 'evaluation')}, {_about(every)}, "
        f"{spent.ms.value * every:,.0f} ms each{around}: {spent.percent}"
        + (f"; its forwards: {site.words}" if site else ""),
        fix=(
            phrase(
                run, "evaluate", by_trainer=_by_trainer(site), every=round(every * rarer), now=every
            ),
            Option("on fewer batches, or with a larger batch size", promises=False),
        ),
        rank=only_on(spent, shares),
        site=_asked_at(view, spent.rank, site),
        recoverable_ms_per_step=spent.ms.value * saved_share,
        interval_ms_per_step=(spent.ms.low * saved_share, spent.ms.high * saved_share),
        proof=spent.proof(
            "evaluation",
            EVALUATING,
            "steps.eval_ns, steps.other_ns",
            "evaluation time = forwards that evaluate, and what the code around them takes above "
            f"other steps; recoverable = evaluation time x (1 - 1/{rarer:.3g}): asked for "
            f"{rarer:.3g} times less often",
            Input("evaluations", count, "", "records with steps.eval_ns above 0"),
        ),
    )


def _rarer(view: RunView, series: RankSeries, every: int) -> float:
    """So many times less often that two evaluations are left of a run that has ended well."""
    if not ended_well(view.record):
        return RARER
    half = series.total_steps() / 2
    return min(float(RARER), max(half / every, 2.0))


def _asked_at(view: RunView, rank: int, site: Site | None) -> str | None:
    """The line that asks for evaluations: the trainer's call where a trainer does, unless a loop of
    the user's below that takes most of them.
    """
    if _by_trainer(site):
        called = loop_of_evaluation(view, rank) or trainers_call(view, rank)
    else:
        called = None
    return called or named(site) or None


def _by_trainer(site: Site | None) -> bool:
    """Whether a trainer's own evaluation lies there, and no callback's."""
    if site is None or site.site is None:
        return True
    return site.caller.startswith("(") and site.site.rpartition(" ")[2] in _STEPS_OF_TRAINERS


def _evaluating(view: RunView, rank: int) -> Share | None:
    """Forwards that evaluate, and what the code around them takes: metrics, batches, logs."""
    series = view.per_rank[rank]
    evaluates = (series.rows["flags"] & wire.F_EVAL) != 0
    trains_only = series.after_set_up & ~evaluates
    if not trains_only.any():
        share_asked = _share_asked(view, rank)
        return _in_cycles(view, rank, lambda rows: rows["eval_ns"] + share_asked * rows["other_ns"])
    # what each twentieth of them has, as the samples that a policy draws, is no evaluation's
    usual_ns = float(np.quantile((series.rows["other_ns"] / series.n_steps)[trains_only], USUALLY))

    def spent_ns(rows: Array) -> Array:
        above = np.maximum(rows["other_ns"] - rows["agent_ns"] - usual_ns * rows["n_steps"], 0)
        pauses = np.maximum(rows["eval_ns"] + rows["checkpoint_ns"], 1)
        return rows["eval_ns"] * (1 + np.where(evaluates, above / pauses, 0))

    return _in_cycles(view, rank, spent_ns)


def _share_asked(view: RunView, rank: int) -> float:
    """Part of the code between the phases that lies below the line that asks for evaluations."""
    line = named(top_site(view, "eval", rank=rank))
    below, count = samples_where(
        view, "other", rank, lambda fields: line in (fields.get("path") or ())
    )
    return below / count if line and count >= ENOUGH else 0.0


def _about(every: int) -> str:
    return f"one every {every} steps or so" if every > 1 else "about one a step"


def _usual_distance(series: RankSeries, column: str, count: int) -> int:
    """Steps from one record with such time to the next: their median, or the mean of a few, as 1
    and 2 in turn; of fewer than three, all steps over how many there were.
    """
    steps = series.rows["step"][series.rows[column] > 0]
    if len(steps) < 3:
        return max(1, series.total_steps() // max(1, count))
    distances = np.diff(steps)
    usual = float(np.median(distances))
    return max(1, round(float(distances.mean()) if usual < FEW_STEPS else usual))
