"""A model that is updated in another mode than it should be."""

from __future__ import annotations

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import LOSS
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

SURE_LOOKS = 2
"""So many looks in a row must have found the same; they lie at least 20 steps apart."""


@finding(
    id="NU14",
    name="trained in eval mode",
    family="numerics",
    cause="compute",
    trigger="at two looks in a row, 20 steps or more apart, a model that was updated in training "
    "mode before is updated in eval mode, all of it, and holds dropout or batch norm",
    fix="model.train() after the evaluation",
    no_use="where the last part of a training is meant to run in eval mode",
    reads="the training flag of the modules just before an update, at the looks of NU08",
    silent="a model that was in eval mode from the beginning; parts of it alone; no dropout and no "
    "batch norm of torch's",
    traps="batch norm frozen on purpose: the model as a whole is then in training mode",
    seen_on=CPU,
    pictures=(LOSS,),
)
def eval_mode(view: RunView, spec: Spec) -> Finding | None:
    """An evaluation called eval() and nobody train(): no dropout, old statistics of batches."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        looks = last.get("eval_mode_looks", 0)
        if looks < SURE_LOOKS:
            return None
        name, parts = last.get("eval_mode") or "the model", last.get("eval_mode_parts") or []
        after = last.get("eval_mode_after", 0)
        site, set_at = last.get("eval_mode_at"), last.get("eval_mode_set_at")
        left_at = last.get("eval_mode_left_at")
        at = f" that calls eval() at {site}" if site else ""
        out = (
            f"on every way out of it: {left_at} is one without"
            if left_at
            else ("on every way out of it")
        )
        fix = f"call model.train() after each evaluation{at}, before the next batch, {out}"
        if set_at and not left_at:
            fix = (
                f"look at {set_at}, in a train() of {name}'s own that may set eval mode; else {fix}"
            )
        return spec.make(
            severity="medium",
            title=f"{name} is trained in eval mode since an evaluation: {', '.join(parts[:3])}",
            evidence=f"{name} of rank {rank} was in training mode when it was updated in step "
            f"{after}, and in eval mode at {looks} looks in a row up to step {last['step']}; what "
            f"works otherwise in eval mode: {', '.join(parts)}",
            fix=fix,
            rank=rank,
            site=left_at or set_at or site,
            confidence=0.9,
            proof=Proof(
                statistic="looks in a row that found the model in eval mode at an update",
                value=looks,
                threshold=SURE_LOOKS,
                unit="looks",
                formula="20 steps or more apart; in training mode at an update before",
                inputs=(
                    Input("last in training mode", after, "step", f"checkup event, rank {rank}"),
                    Input("last look", last["step"], "step", "the same"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)
