"""Habits that keep a network from learning, seen in its graph, optimizer and weights."""

from __future__ import annotations

from collections.abc import Callable

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import LOSS, RATE, phases
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import Event, on_ranks, told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

ALIKE = 3
"""So many looks in a row must have found the same; they lie at least 20 steps apart."""
VANISHED = 1e-5
"""Root mean square of weights; layers are made with 0.01 to 1."""


def standing(events: list[Event], has: Callable[[Event], object]) -> int:
    """Looks in a row, up to the last one, that found something."""
    without = next((i for i, event in enumerate(reversed(events)) if not has(event)), len(events))
    return max(without, events[-1].get("alike", 0)) if without else 0


def optimizer_site(view: RunView, rank: int) -> str | None:
    """The line where the optimizer was made."""
    return (view.hello(rank).get("optimizer") or {}).get("site")


def schedule_site(view: RunView, rank: int, *, begins: bool = False) -> str | None:
    """The line where a function of the user's returns the schedule's factor, the last of them, or
    the first where the schedule has but begun; else where the scheduler was made; without one,
    that which sets the rate, or the optimizer's own.
    """
    optimizer = view.hello(rank).get("optimizer") or {}
    returned_at = optimizer.get("scheduler_returns")
    if returned_at:
        return returned_at[0 if begins else -1]
    looks = told(view, "checkup").get(rank, ())
    set_at = next((look["rate_set_at"] for look in looks if look.get("rate_set_at")), None)
    return optimizer.get("scheduler") or set_at or optimizer.get("site")


@finding(
    id="NU16",
    name="optimizer made anew each step",
    family="numerics",
    cause="nan",
    trigger="at three looks in a row, 20 steps or more apart, the update was the first one of its "
    "optimizer, of the same parameters as those before, and left a state behind",
    fix="make the optimizer once, before the loop",
    explains=("NU07", "HO12"),
    no_use="where each update is meant to begin without momentum",
    reads="the optimizer's state just before and after an update, at the looks of NU08",
    silent="fewer than three looks; an optimizer without state, as SGD without momentum is",
    traps="a new optimizer for each fold, trial or stage",
    pictures=(
        LOSS,
        RATE,
    ),
)
def made_anew(view: RunView, spec: Spec) -> Finding | None:
    """Momentum and the averages of Adam begin at zero in each step."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        looks = last.get("fresh_looks", 0)
        if looks < ALIKE:
            return None
        name = str((view.hello(rank).get("optimizer") or {}).get("class") or "the optimizer")
        return spec.make(
            severity="high",
            title=f"{name} is made anew for each update: its state is lost",
            evidence=f"at {looks} looks in a row up to step {last['step']} of rank {rank} the "
            f"update was the first one of a new {name}: momentum and averages of gradients begin "
            "at zero each time",
            fix=f"make {name} once, before the loop; to change its rate use a scheduler, or set "
            "optimizer.param_groups[0]['lr']",
            rank=rank,
            site=last.get("fresh_at") or optimizer_site(view, rank) or last.get("update_at"),
            confidence=0.95,
            proof=Proof(
                statistic="looks in a row at an optimizer without any state before its update",
                value=looks,
                threshold=ALIKE - 1,
                unit="looks",
                formula="of the same parameters as the optimizer of the step before",
                inputs=(Input("last look", last["step"], "step", f"checkup event, rank {rank}"),),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


@finding(
    id="NU17",
    name="probabilities as scores",
    family="numerics",
    cause="nan",
    trigger="at three looks in a row, the loss's graph has cross_entropy directly behind a "
    "softmax, or binary_cross_entropy_with_logits directly behind a sigmoid",
    fix="give the loss the scores themselves",
    explains=("NU07",),
    no_use="where the second one is meant, as to flatten probabilities",
    reads="the graph of the loss at a backward, at the looks of NU08",
    silent="fewer than three looks; a loss inside a compiled graph",
    traps="softmax inside the model, as in attention: only what the loss is given counts",
    pictures=(LOSS,),
)
def normalised_twice(view: RunView, spec: Spec) -> Finding | None:
    """The loss applies softmax to probabilities: it can't fall far, and its gradients are small."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        function = last.get("normalised_twice")
        looks = standing(events, lambda event: event.get("normalised_twice"))
        if not function or looks < ALIKE:
            return None
        if function == "softmax":
            loss, bound = (
                "cross_entropy",
                "even a certain and right answer of C classes costs ln(1 + (C - 1) / e)",
            )
        else:
            loss, bound = (
                "binary_cross_entropy_with_logits",
                "even a certain and right answer costs 0.31",
            )
        return spec.make(
            severity="medium",
            title=f"{function} twice: {loss} is given probabilities",
            evidence=f"{looks} looks up to step {last['step']} of rank {rank} found {loss}, which "
            f"applies {function} itself, right behind a {function}: {bound}, and gradients are "
            "small",
            fix=f"take the {function} out of the model's output, and apply it only where "
            "probabilities are wanted, as in an evaluation",
            rank=everybody(view),
            site=last.get("shapes_at") or last.get("backward_at"),
            confidence=0.95,
            proof=Proof(
                statistic=f"looks in a row at a graph with {function} before {loss}",
                value=looks,
                threshold=ALIKE - 1,
                unit="looks",
                formula="nodes of autograd from the loss on; casts and views between them are "
                "passed over",
                inputs=(Input("last look", last["step"], "step", f"checkup event, rank {rank}"),),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


@finding(
    id="NU20",
    name="each prediction with each target",
    family="numerics",
    cause="nan",
    trigger="at three looks in a row, the loss's graph has errors of n x n values that come from n "
    "predictions or errors: they were spread over targets or weights of another shape",
    fix="give predictions and targets, or errors and their weights, the same shape",
    explains=("NU07",),
    no_use="where each is to be compared with each",
    reads="the graph of the loss at a backward, at the looks of NU08",
    silent="fewer than three looks; a loss inside a compiled graph; before torch 2.1",
    traps="pairwise losses whose two sides both come from the model",
    seen_on=CPU,
    pictures=(LOSS,),
)
def compared_crosswise(view: RunView, spec: Spec) -> Finding | None:
    """The model learns the mean of the targets, whatever it is given."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        looks = standing(events, lambda event: event.get("predictions_shape"))
        if not last.get("predictions_shape") or looks < ALIKE:
            return None
        predictions = _shape_words(last["predictions_shape"])
        errors = _shape_words(last["errors_shape"])
        title = (
            f"each prediction is compared with each target: errors of {errors} from predictions of "
            f"{predictions}"
        )
        learnt = "and the mean of the targets is all that can be learnt"
        fix = (
            "give both the same shape before they are subtracted: predictions.squeeze(-1), or "
            "targets.unsqueeze(-1)"
        )
        if last.get("weighed"):
            title = (
                f"each error is weighed by each weight: {errors} products from errors of "
                f"{predictions}"
            )
            learnt = "so that each error meets the sum of the weights, which weigh nothing"
            fix = (
                "give both the same shape before they are multiplied: errors.squeeze(-1), or "
                "weights.unsqueeze(-1)"
            )
        return spec.make(
            severity="high",
            title=title,
            evidence=f"{looks} looks up to step {last['step']} of rank {rank} found a loss of "
            f"{errors} values that {predictions} values were spread to over others of another "
            f"shape, {learnt}",
            fix=fix,
            rank=everybody(view),
            site=last.get("shapes_at") or last.get("loss_at") or last.get("backward_at"),
            confidence=0.9,
            proof=Proof(
                statistic="looks in a row at errors that are the square of the predictions",
                value=looks,
                threshold=ALIKE - 1,
                unit="looks",
                formula="shapes that autograd keeps of what a subtraction or an expansion gave, "
                "and of what that was given",
                inputs=(
                    Input("predictions", predictions, "", f"checkup event, rank {rank}"),
                    Input("errors", errors, "", "the same"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


def _shape_words(sizes: list[int]) -> str:
    """``1,024 x 8``."""
    return " x ".join(f"{size:,}" for size in sizes)


@finding(
    id="NU18",
    name="weights have vanished",
    family="numerics",
    cause="nan",
    trigger="at three looks in a row, the largest root mean square of some weights of eight "
    f"matrices is below {VANISHED:.0e}",
    fix="less weight decay",
    explains=("NU07", "NU13"),
    no_use="where weights are meant to be driven to zero, as in pruning",
    reads="4096 weights of up to eight matrices just before an update, at the looks of NU08",
    silent="fewer than three looks; sharded weights; weights that are 0 at the first look",
    traps="adapters that begin at zero: others of the matrices do not",
    pictures=(
        LOSS,
        RATE,
    ),
)
def weights_vanished(view: RunView, spec: Spec) -> Finding | None:
    """Decay has driven all weights to zero: the network answers the same to everything."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        largest = last.get("weights_rms")
        looks = standing(events, lambda event: event.get("weights_rms", 1.0) < VANISHED)
        if largest is None or looks < ALIKE or events[0].get("weights_rms") == 0:
            return None  # zeros from the beginning have not vanished: see NU13
        optimizer = view.hello(rank).get("optimizer") or {}
        decay = optimizer.get("weight_decay")
        return spec.make(
            severity="high",
            title=f"all weights are as good as 0: {largest:.1g} at most",
            evidence=f"at {looks} looks in a row up to step {last['step']} of rank {rank} none of "
            f"up to eight matrices had weights with a root mean square above {largest:.2g}"
            + (f"; weight_decay={decay:g}" if isinstance(decay, float) else ""),
            fix="lower weight_decay (1e-4 to 1e-1 with AdamW, 1e-5 to 5e-4 with SGD), and begin "
            "anew: from weights of zero nothing is learnt",
            rank=everybody(view),
            site=optimizer_site(view, rank),
            confidence=0.9,
            proof=Proof(
                statistic="largest root mean square of weights",
                value=largest,
                threshold=VANISHED,
                unit="",
                formula="of 4096 weights each of up to eight matrices; below the threshold",
                inputs=(Input("looks in a row", looks, "", f"checkup events, rank {rank}"),),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


@finding(
    id="NU19",
    name="gradients cleared unused",
    family="numerics",
    cause="compute",
    trigger="at three looks in a row, 20 steps or more apart, the gradients of a backward were "
    "cleared before the update of its step used them, and another batch went forward after it",
    fix="zero_grad() once for each update, and not for each batch that it gathers",
    explains=("NU07",),
    no_use="where only the last batch of a step is meant to count",
    reads="values of up to eight gradients and weights around the backwards of a step, at the "
    "looks of NU08",
    silent="fewer than three looks; several optimizers; parameters on a GPU; gradients that are "
    "put together by hand",
    traps="a perturbation of the weights or of the input, as of SAM or adversarial training, whose "
    "gradients are cleared on purpose",
    seen_on=CPU,
    pictures=(
        LOSS,
        phases("forward", "backward"),
    ),
)
def cleared_unused(view: RunView, spec: Spec) -> Finding | None:
    """Batches that are computed for nothing: the update has the gradients of the last one alone."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        looks, cleared = last.get("cleared_looks") or 0, last.get("cleared_backwards") or 0
        if looks < ALIKE or not cleared:
            return None
        backwards = max(cleared + 1, int(last.get("step_backwards") or 0))
        return spec.make(
            severity="high",
            title=f"{cleared} of {backwards} backwards a step are for nothing: their gradients are "
            "cleared before the update",
            evidence=f"at {looks} looks in a row up to step {last['step']} of rank {rank} the "
            f"gradients of {cleared} of {backwards} backwards had been set to zero or None when "
            "the next one began, and the weights were the same: the update had those of the last "
            "batch alone",
            fix="call optimizer.zero_grad() once for each update, before its first batch or right "
            "after optimizer.step()",
            rank=rank,
            site=last.get("cleared_at") or last.get("backward_at"),
            confidence=0.95,
            proof=Proof(
                statistic="looks in a row at a step with gradients that were cleared unused",
                value=looks,
                threshold=ALIKE - 1,
                unit="looks",
                formula="64 values of up to eight gradients after each backward and before the "
                "next",
                inputs=(
                    Input("cleared", cleared, "backwards a step", f"checkup event, rank {rank}"),
                    Input("all", backwards, "backwards a step", "the same"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)
