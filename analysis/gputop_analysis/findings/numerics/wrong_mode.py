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
    "mode before is updated in eval mode, all of it, and holds dropout or batch norm; or one with "
    "dropout always was, and one place of the script calls eval() or from_pretrained()",
    fix="model.train() after the evaluation",
    no_use="where the last part of a training is meant to run in eval mode",
    reads="the training flag of the modules just before an update, at the looks of NU08",
    silent="a model without dropout that was in eval mode from the beginning; parts of it alone; "
    "no dropout and no batch norm of torch's",
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
        since, before = (
            "since an evaluation",
            f"in training mode when it was updated in step {after}",
        )
        if after < 0:
            since, before = "from the beginning", "at no look in training mode"
            fix = f"call model.train() before the training: {site} leaves it in eval mode"
        return spec.make(
            severity="medium",
            title=f"{name} is trained in eval mode {since}: {', '.join(parts[:3])}",
            evidence=f"{name} of rank {rank} was {before}, and in eval mode at {looks} looks in a "
            f"row up to step {last['step']}; what works otherwise in eval mode: "
            + ", ".join(parts),
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


SEVERAL = 2
"""Evaluations that were in training mode."""


def _is_by_sample(kinds: list[str]) -> bool:
    """Whether all that works otherwise normalises each sample by itself: nothing of it is random,
    and none depends on the others of its batch.
    """
    return bool(kinds) and all(kind.startswith("InstanceNorm") for kind in kinds)


@finding(
    id="NU21",
    name="evaluated in training mode",
    family="numerics",
    cause="compute",
    trigger=f"in {SEVERAL} steps or more, a model that is trained, and holds dropout or batch "
    "norm, is called without gradients by an evaluation in training mode, and by none in eval "
    "mode; or a copy of it, while the trained one is in eval mode",
    fix="model.eval() before the evaluation, model.train() after it",
    no_use="where an evaluation is meant to be in training mode, such as one that draws dropout's "
    "masks to say how sure it is, or that collects batch norm's statistics anew",
    reads="the training flag of the outermost modules at forwards without gradients",
    silent="evaluations with gradients; those of the batch that is trained next, as a teacher's "
    "are; no dropout and no batch norm of torch's",
    traps="one evaluation in eval mode says that the others are meant to be otherwise",
    seen_on=CPU,
)
def evaluated_in_training_mode(view: RunView, spec: Spec) -> Finding | None:
    """Nobody called eval(): dropout is on, and batch norm learns what it is to be judged by."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        steps = last.get("evaluated_in_training_steps", 0)
        if steps < SEVERAL:
            return None
        name = last.get("evaluated_in_training") or "the model"
        other, model = "and never in eval mode", "model"
        if last.get("evaluated_copy"):
            name, model = f"a copy of {name}", "copy"
            other = "while the one that is trained was in eval mode"
        kinds = last.get("evaluated_in_training_parts") or []
        parts, by_sample = ", ".join(kinds), _is_by_sample(kinds)
        what_it_does = (
            "batch norm also takes the statistics of what it is evaluated on into its own"
        )
        why = "the scores are of a model with dropout, or that normalises by the batch"
        if by_sample:
            what_it_does = "it takes the statistics of what it is given into its own"
            why = (
                "it normalises each sample by itself in training mode, and by the statistics of "
                "the training in eval mode, which may not be what is wanted of pictures"
            )
        site = last.get("evaluated_in_training_at")
        at = f" at {site}" if site else ""
        return spec.make(
            severity="info" if by_sample else "medium",
            title=f"{name} is evaluated in training mode: {parts}",
            evidence=f"{name} of rank {rank} was called without gradients{at} while it was in "
            f"training mode, in {steps} steps up to step {last['step']}, {other}; "
            f"what works otherwise in training mode: {parts}; {what_it_does}",
            fix=f"call {model}.eval() before {site or 'the evaluation'}, and {model}.train() after "
            f"it: {why}",
            rank=rank,
            site=site,
            confidence=0.8,
            proof=Proof(
                statistic="steps with an evaluation in training mode",
                value=steps,
                threshold=SEVERAL,
                unit="steps",
                formula="forwards without gradients that no backward followed before the next "
                "batch; none in eval mode",
                inputs=(Input("last look", last["step"], "step", f"checkup event, rank {rank}"),),
            ),
        )

    return on_ranks(view, "checkup", of_rank)
