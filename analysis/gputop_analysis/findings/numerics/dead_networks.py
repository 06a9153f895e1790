"""Networks that do not learn, because no gradient reaches their parameters."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.wrong_habits import standing
from gputop_analysis.findings.pictures import LOSS, RATE
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.told import Event, on_ranks, parameter_names
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView

ALIKE = 3
"""So many looks in a row must have found the same; they lie at least 20 steps apart."""
MUCH_DEAD = 0.01
"""Of the parameters: layers that are dead to the last unit."""
SOLVED = 1e-3
"""Of the first losses: a loss below that is as good as none, and none has no gradient."""

LOSS_OF_NOTHING = (
    "the loss is 0 from the first step on, whatever the network says: look at what it compares, as "
    "cross_entropy() of a single class, a mask that leaves nothing, targets that are the outputs"
)


@finding(
    id="NU13",
    name="gradients are zero",
    family="numerics",
    cause="nan",
    trigger="at three looks in a row, 20 steps or more apart, every gradient value that is looked "
    "at is zero when the optimizer steps; info where the loss is below a thousandth of what it "
    f"was at first; or the whole gradient of more than {percent(MUCH_DEAD)} of the parameters is",
    fix="dead units (a smaller learning rate, another initialisation or activation), a "
    "detach() or a mask of zeros between model and loss",
    explains=("NU07", "NU08"),
    no_use="where the problem is solved, and there is nothing left to learn",
    reads=(
        "4096 values of up to eight gradients just before an update, at looks 20 "
        "steps or more apart"
    ),
    silent=(
        "fewer than three looks; gradients that are sparse, sharded or of a tensor subclass; parts "
        "of a model with experts"
    ),
    traps="a problem that is solved, a hinge loss that is met, a table of which few rows are used",
    seen_on=CPU,
    pictures=(
        LOSS,
        RATE,
    ),
)
def dead_gradients(view: RunView, spec: Spec) -> Finding | None:
    """The optimizer steps and changes nothing: dead units, a loss apart from the model."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        all_zero = last.get("gradients_not_zero") == 0
        # seen at three looks, whatever else has changed
        zero_values = last.get("zero_gradient") or 0
        looks = standing(events, lambda look: look.get("gradients_not_zero") == 0)
        if not all_zero or (looks < ALIKE and zero_values < (last.get("trainable") or 1)):
            return None
        since = _since(events)
        first, last_losses = _losses(view, rank)
        solved, is_nothing = _is_solved(first, last_losses), first == last_losses == 0
        if np.isfinite(first):
            loss = f"; loss {first:.4g} at first, {last_losses:.4g} now"
        else:
            loss = ""
        clip = view.hello(rank).get("clip") or {}
        clipped = clip.get("max_norm") == 0
        looks = max(looks, last.get("zero_gradient_looks") or 0)
        return spec.make(
            severity="info" if solved else "high",
            title=f"all gradients are zero since step {since} or before: "
            + ("they are clipped to a norm of 0" if clipped else "nothing is learnt"),
            evidence=f"{last['gradients_looked_at']:,} gradient values of up to eight parameters "
            f"were all zero at {looks} looks in a row up to step {last['step']}, rank "
            f"{rank}{loss}" + ("; clip_grad_norm_ is called with max_norm=0" if clipped else ""),
            fix=_through_flat(last)
            or _zeroed(last)
            or (LOSS_OF_NOTHING if is_nothing else "")
            or _ways_out(solved=solved, clipped=clipped, weights_rms=last.get("weights_rms")),
            rank=rank,
            site=clip.get("site") if clipped else _made_at(last) or last.get("backward_at"),
            confidence=0.95,
            proof=Proof(
                statistic="looks in a row at which no gradient value was other than zero",
                value=looks,
                threshold=ALIKE - 1,
                unit="looks",
                formula="eight parameters from the first to the last, 4096 values of each at "
                "most, just before an update",
                inputs=(
                    Input(
                        "values looked at",
                        int(last["gradients_looked_at"]),
                        "",
                        f"checkup event, rank {rank}",
                    ),
                    Input("other than zero", 0, "", "the same"),
                    Input("first losses", first, "", f"steps.loss, rank {rank}"),
                    Input("last losses", last_losses, "", f"steps.loss, rank {rank}"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank) or _partly_dead(view, spec)


def _is_solved(first: float, last: float) -> bool:
    """Whether a loss has come down to next to nothing; one that was 0 from the start has not."""
    return abs(first) > 0 and abs(last) <= SOLVED * abs(first)


def _ways_out(*, solved: bool, clipped: bool, weights_rms: float | None) -> str:
    """What to do about gradients that are all zero."""
    if solved:
        return "the loss is as good as 0: stop here"
    if clipped:
        return "give clip_grad_norm_ a max_norm above 0, such as 1.0: 0 takes all of a gradient"
    if weights_rms == 0:
        return (
            "the weights that train are all 0, too: of two factors, as in LoRA, one must begin at "
            "random values, since where both are 0 neither gets a gradient"
        )
    return (
        "look at the activations: units that are dead (a smaller learning rate, LeakyReLU or GELU, "
        "another initialisation) or saturated; and for a detach(), an argmax or a mask of zeros "
        "between model and loss"
    )


def _made_at(look: Event) -> str | None:
    """The line of an operation that lets no gradient through, or of weights of 0."""
    return look.get("zero_gradient_made_at") or look.get("zero_weights_at")


def _through_flat(look: Event) -> str:
    """What to do about an operation that lets no gradient through; empty where none is known."""
    operation = look.get("zero_gradient_by")
    if not operation:
        return ""
    made_at = look.get("zero_gradient_made_at")
    at = f" at {made_at}" if made_at else ""
    return (
        f"{operation}(){at} has a gradient of zero everywhere: let it pass straight through, "
        f"x + (x.{operation}() - x).detach(), or leave it out while training"
    )


def _zeroed(look: Event) -> str:
    """What to do about weights that are 0 still; empty where there are none."""
    names = parameter_names(look.get("zero_weights") or [])
    if not names:
        return ""
    at = f" ({look['zero_weights_at']})" if look.get("zero_weights_at") else ""
    return (
        f"begin {' and '.join(names[:2])} at random values{at}: all of it is 0, and what is "
        "multiplied by 0 gives no gradient; of two factors that follow each other one may be 0"
    )


def _partly_dead(view: RunView, spec: Spec) -> Finding | None:
    """Layers of which no unit lets a gradient through, in a network that learns elsewhere."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        dead, total = last.get("zero_gradient") or 0, last.get("trainable") or 0
        first, last_losses = _losses(view, rank)
        experts = bool(((view.hello(rank).get("model") or {}).get("config") or {}).get("experts"))
        solved = _is_solved(first, last_losses)
        if not dead or not total or solved or experts:
            return None
        names = parameter_names(last["zero_gradient_names"])
        share, looks = dead / total, last["zero_gradient_looks"]
        return spec.make(
            severity="medium" if share > MUCH_DEAD else "info",
            title=f"{100 * share:.0f} % of the parameters have gradients of zero: "
            f"{', '.join(names[:2])}",
            evidence=f"the gradients of {dead:,} of {total:,} values were zero, all of them, at "
            f"{looks} looks in a row up to step {last['step']}, rank {rank}: {', '.join(names)}",
            fix=_through_flat(last)
            or _zeroed(last)
            or "look at the activations behind these layers: units that are dead (a smaller "
            "learning rate, LeakyReLU or GELU, another initialisation), a detach() or a factor of "
            "zero in the loss; freeze them if that is meant",
            rank=rank,
            site=_made_at(last) or last.get("zero_gradient_at") or last.get("backward_at"),
            confidence=0.85,
            proof=Proof(
                statistic="values whose whole tensor had a gradient of zero / values in the "
                "optimizer",
                value=100 * share,
                threshold=100 * MUCH_DEAD,
                unit="%",
                formula="embeddings are left out",
                inputs=(
                    Input("zero", dead, "values", f"checkup event of step {last['step']}"),
                    Input("in the optimizer", total, "values", "the same"),
                    Input("looks in a row", looks, "", "the same"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


def _since(events: list[Event]) -> int:
    """Step of the first of the last looks that all found no gradient."""
    step = events[-1]["step"]
    for event in reversed(events):
        if event.get("gradients_not_zero") != 0:
            break
        step = event["step"]
    return int(step)


def _losses(view: RunView, rank: int) -> tuple[float, float]:
    """Medians of the first and of the last losses of a rank; NaN where none is known."""
    losses = view.record.steps(rank)["loss"]
    return _finite_median(losses[:20]), _finite_median(losses[-20:])


def _finite_median(losses: Array) -> float:
    finite = losses[np.isfinite(losses)]
    return float(np.median(finite)) if len(finite) else np.nan
