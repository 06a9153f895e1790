"""Gradients that are never cleared and add up from step to step."""

from __future__ import annotations

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.dead_networks import ALIKE
from gputop_analysis.findings.numerics.large_gradients import gradient_norms
from gputop_analysis.findings.option import Option
from gputop_analysis.findings.pictures import LOSS, NORM
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.sites import called_from
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.mend import ByRule
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView


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

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        if not last.get("stale") or last.get("alike", 0) < ALIKE:
            return None
        norms = gradient_norms(view)[-1]
        if len(norms) > 1:
            grown = f"; the gradient norm went from {norms[0]:.3g} to {norms[-1]:.3g}"
        else:
            grown = ""
        cleared_at = last.get("cleared_at")
        if cleared_at:
            called = f"; zero_grad() is called at {cleared_at} alone, which does not clear them all"
        else:
            called = ""
        return spec.make(
            severity="high",
            title="gradients are never cleared: each step adds to those of all steps before",
            evidence="gradients of the step before are not zero when the first backward after an "
            f"update begins ({last['alike']} looks up to step {last['step']}, rank {rank}){grown}"
            f"{called}",
            fix=Option(
                "call optimizer.zero_grad() after optimizer.step()", mend=ByRule("no-zero-grad")
            ),
            rank=rank,
            site=cleared_at or called_from(view, "backward", rank) or last.get("backward_at"),
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

    return on_ranks(view, "checkup", of_rank) or _one_never_cleared(view, spec)


def _one_never_cleared(view: RunView, spec: Spec) -> Finding | None:
    """One of several optimizers: all backwards between two updates added to old gradients."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
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
            rank=rank,
            site=last.get("backward_at") or called_from(view, "backward", rank),
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

    return on_ranks(view, "uncleared", of_rank)
