"""Parameters without a gradient: frozen, left out of the optimizer, or used by nobody."""

from __future__ import annotations

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.dead_networks import ALIKE
from gputop_analysis.findings.numerics.left_out_parameters import MUCH_WITHOUT, left_out
from gputop_analysis.findings.numerics.misspelt import misspelt
from gputop_analysis.findings.numerics.stray_gradients import for_nobody
from gputop_analysis.findings.numerics.wrong_habits import standing
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import (
    Event,
    on_ranks,
    parameter_names,
)
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.text import counted
from gputop_analysis.view import RunView

WHOLE_TOWER = 0.1
"""Of the values: so many have no gradient where what a whole network gives was gathered."""


@finding(
    id="NU08",
    name="parameters without gradient",
    family="numerics",
    cause="compute",
    trigger="parameters that the optimizer has and that want a gradient have none at three "
    "looks in a row, 20 steps or more apart; medium where they are more than 1 % of "
    "all, high where they are all of them; or the only optimizer lacks more than 1 % "
    "of what wants one; or at three looks in a row more than 1 % of what has one, or part "
    "of a model that is trained or a whole module beside it, is in no optimizer that has stepped, "
    "and does not change; or all that the optimizer has is frozen, at three looks in a row; or one "
    "of several optimizers steps without any gradient; or parameters "
    "have an attribute that is nearly called requires_grad, with another value",
    fix="use them in the loss, or set requires_grad=False and leave them out of the optimizer",
    explains=("NU07",),
    no_use="where the parameters are frozen for now on purpose",
    reads="parameters of the optimizer whose gradient is None, at looks 20 steps or more apart",
    silent="frozen parameters beside others that are updated",
    traps="experts that no token was sent to",
    seen_on=CPU,
)
def without_gradient(view: RunView, spec: Spec) -> Finding | None:
    """Part of the model does not learn."""

    def of_rank(rank: int, looks: list[Event]) -> Finding | None:
        look = looks[-1]
        missing, total = look.get("without_gradient") or 0, look.get("trainable") or 0
        in_a_row = standing(looks, lambda other: other.get("without_gradient") == missing)
        if not missing or not total or in_a_row < ALIKE:
            return None
        optimizer = view.hello(rank).get("optimizer") or {}
        if missing == total and optimizer.get("module") not in ("torch", None):
            return None  # an optimizer that is not torch's may have gradients of its own
        if missing == total and not view.per_rank[rank].rows["backward_ns"].any():
            return None  # nothing trains yet: a schedule is looked at by a dummy's steps
        return _without_gradient(view, spec, rank, look, in_a_row)

    return (
        on_ranks(view, "checkup", of_rank)
        or _of_another_optimizer(view, spec)
        or left_out(view, spec)
        or for_nobody(view, spec)
        or misspelt(view, spec)
        or _frozen_group(view, spec)
    )


def _of_another_optimizer(view: RunView, spec: Spec) -> Finding | None:
    """One of several optimizers that updates without any gradient."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        name, values = last["optimizer"], last["values"]
        names = parameter_names(last.get("names") or [""])
        return spec.make(
            severity="medium",
            title=f"{name} updates nothing: none of its parameters has a gradient: "
            f"{', '.join(names[:2])}",
            evidence=f"all {values:,} values of {name}, one of several optimizers, had grad None "
            f"when it stepped, at {last['looks']} looks in a row up to step {last['step']} of rank "
            f"{rank}: {', '.join(names)}",
            fix="look between these parameters and the loss of the backward: for a detach(), an "
            ".item(), a torch.no_grad(), or a loss that is not added",
            rank=rank,
            site=last.get("at"),
            confidence=0.9,
            proof=Proof(
                statistic="looks in a row at an update of an optimizer without any gradient",
                value=last["looks"],
                threshold=ALIKE - 1,
                unit="looks",
                formula="20 steps or more apart",
                inputs=(Input("values", values, "", f"no_gradient event, rank {rank}"),),
            ),
        )

    return on_ranks(view, "no_gradient", of_rank)


def _without_gradient(view: RunView, spec: Spec, rank: int, look: Event, in_a_row: int) -> Finding:
    missing, total = look["without_gradient"], look["trainable"]
    share = missing / total
    names = parameter_names(look.get("without_gradient_names") or [""])
    config = (view.hello(rank).get("model") or {}).get("config") or {}
    optimizer = view.hello(rank).get("optimizer") or {}
    severity: Severity = "info"
    if share == 1:
        severity = "high"
    elif share > MUCH_WITHOUT and not config.get("experts"):
        severity = "medium"  # experts that no token was sent to have none either
    fix, site = _way_out(look)
    if not any(look.get("without_gradient_names", ["known"])):
        site = optimizer.get("site") or site
        fix = (
            "make the optimizer after the last change of the model: it has parameters that no "
            "module has any more, as where a layer was replaced or parametrised"
        )
    if share == 1:
        fix, site = _way_out_of_all(look, optimizer.get("site"))
    return spec.make(
        severity=severity,
        title=f"{_part(missing, total)} no gradient: {', '.join(names[:2])}",
        evidence=f"{missing:,} of {total:,} values in the optimizer have grad None when it "
        f"steps ({in_a_row} looks up to step {look['step']}, rank {rank}): "
        f"{', '.join(names)}",
        fix=fix,
        rank=rank if len(view.ranks) > 1 else everybody(view),
        site=site,
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
                Input("looks in a row", in_a_row, "", "the same"),
            ),
        ),
    )


def _way_out_of_all(look: Event, made_at: str | None) -> tuple[str, str | None]:
    """The same where no parameter has one."""
    fix = (
        "give the optimizer the parameters of the model that the loss comes from: it has others, "
        "such as a copy's"
    )
    held_back = look.get("held_back_at")
    if held_back:
        return (
            f"look at {held_back} first: the last backward of an update has to reduce gradients, "
            f"and FSDP keeps them to itself until one does; or {fix}",
            held_back,
        )
    return fix, made_at


def _way_out(look: Event) -> tuple[str, str | None]:
    """What to do about a part without a gradient, and where."""
    reentrant, leaf = look.get("reentrant_at"), look.get("new_leaf_at")
    used = look.get("without_gradient_at")
    if reentrant:
        return (
            f"checkpoint with use_reentrant=False ({reentrant}): with True, as torch has warned, a "
            "part whose inputs need no gradient gets none for its weights either",
            reentrant,
        )
    breaks = "a detach(), a torch.no_grad() or a branch that is not taken"
    if leaf:
        beyond = f"what {used} uses, for " if used else ""
        return (
            f"look at {leaf} first, which makes a new leaf of values: if the loss goes through it, "
            f"what it was made from gets no gradient; else at {beyond}{breaks}",
            leaf,
        )
    dropped, cut = look.get("dropped_at"), look.get("cut_at")
    if dropped:
        return (
            f"look at {dropped} first: they had a gradient after the backward, and none at the "
            "update",
            dropped,
        )
    if cut:
        return (
            f"look at {cut} first, which takes a value out of the graph: what it was made from "
            "gets no gradient; leave that out, or call requires_grad_(False) and leave them out "
            "of the optimizer",
            cut,
        )
    gathered, missing = look.get("gathered_at"), look["without_gradient"] / look["trainable"]
    if gathered and missing > WHOLE_TOWER:
        return (
            f"look at {gathered} first: what all_gather gives has no graph, so that what it was "
            "made from gets no gradient; put the rank's own part back in its place, or use "
            "torch.distributed.nn.functional.all_gather",
            gathered,
        )
    return (
        "use them in the loss, or call requires_grad_(False) and leave them out of the "
        f"optimizer; look for {breaks}",
        used or look.get("backward_at"),
    )


def _frozen_group(view: RunView, spec: Spec) -> Finding | None:
    """A group of the optimizer that was frozen, as a table by a default, and is never updated."""

    def of_rank(rank: int, looks: list[Event]) -> Finding | None:
        last = looks[-1]
        in_a_row = standing(looks, lambda look: look.get("frozen_group"))
        if not last.get("frozen_group") or in_a_row < ALIKE:
            return None
        if last.get("frozen_whole"):
            return _nothing_to_update(view, spec, rank, last, in_a_row)
        names = parameter_names(last.get("frozen_group_names") or [""])
        values, at = last["frozen_group"], last.get("frozen_group_at")
        unfreeze = "call requires_grad_(True) on them before the training"
        if at:
            unfreeze = "say freeze=False: Embedding.from_pretrained() freezes what it makes"
        return spec.make(
            severity="medium" if at else "info",
            title=f"a group of the optimizer is frozen: {', '.join(names[:2])}",
            evidence=f"none of the {values:,} values in such groups wants a gradient, at "
            f"{in_a_row} looks in a row up to step {last['step']} of rank {rank}, while others "
            f"of the same optimizer are updated: {', '.join(names)}",
            fix=f"{unfreeze}; or leave them out of the optimizer if they shall stay as they are",
            rank=everybody(view),
            site=at or (view.hello(rank).get("optimizer") or {}).get("site"),
            confidence=0.85 if at else 0.5,
            proof=Proof(
                statistic="looks in a row at which a whole group of the optimizer is frozen",
                value=in_a_row,
                threshold=ALIKE - 1,
                unit="looks",
                formula="all of a group's parameters have requires_grad=False",
                inputs=(Input("values", values, "", f"checkup event, rank {rank}"),),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


def _nothing_to_update(view: RunView, spec: Spec, rank: int, look: Event, in_a_row: int) -> Finding:
    """What trains was exchanged, as an adapter is by another, after the optimizer was made."""
    values = look["frozen_group"]
    return spec.make(
        severity="high",
        title="the optimizer has nothing to update: all that it was given is frozen",
        evidence=f"none of its {values:,} values wants a gradient, at {in_a_row} looks in a row up "
        f"to step {look['step']} of rank {rank}: what is trained now is in no optimizer",
        fix="make the optimizer of what trains now, after the call that freezes or exchanges "
        "parameters, such as load_adapter(), set_adapter() or requires_grad_()",
        rank=everybody(view),
        site=look.get("frozen_group_at") or (view.hello(rank).get("optimizer") or {}).get("site"),
        confidence=0.9,
        proof=Proof(
            statistic="looks in a row at which all of the optimizer is frozen",
            value=in_a_row,
            threshold=ALIKE - 1,
            unit="looks",
            formula="all of its parameters have requires_grad=False when it steps",
            inputs=(Input("values", values, "", f"checkup event, rank {rank}"),),
        ),
    )


def _part(missing: int, total: int) -> str:
    if 1000 * missing < total:  # "0.0 %" would say nothing
        verb = "gets" if missing == 1 else "get"
        return f"{counted(missing, 'value')} of {total:,} in the optimizer {verb}"
    return f"{100 * missing / total:.1f} % of the parameters get"
