"""Parameters without a gradient: frozen, left out of the optimizer, or used by nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gputop_agent.contracts import Hello
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.dead_networks import ALIKE
from gputop_analysis.findings.numerics.misspelt import misspelt
from gputop_analysis.findings.numerics.wrong_habits import standing
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import (
    Event,
    on_ranks,
    parameter_names,
    spread,
    told,
    told_optimizers,
)
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.text import counted
from gputop_analysis.view import RunView

MUCH_WITHOUT = 0.01
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
        or _left_out(view, spec)
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


def _left_out(view: RunView, spec: Spec) -> Finding | None:
    """Parameters that want a gradient, and that no optimizer was given: they are never updated."""
    ranks = spread(list(view.ranks))
    leaving = [rank for rank in ranks if _leaves_out_much(view, rank)]
    if not leaving:
        return _for_nobody(view, spec)
    left_out = _of_no_optimizer(view, spec, leaving[0])
    return replace(left_out, rank=everybody(view)) if leaving == ranks else left_out


def _leaves_out_much(view: RunView, rank: int) -> bool:
    """Whether gradients come back to much that no optimizer ever had."""
    hello = view.hello(rank)
    trainable, given_values = _trainable(hello), _given(hello.get("optimizer") or {})
    if not _comparable(hello) or not given_values:
        return False
    much = MUCH_WITHOUT * trainable
    if trainable - given_values <= much or _once_given(view, rank, trainable):
        return False
    return _gradients_beyond(view, rank, given_values + much)


def _of_no_optimizer(view: RunView, spec: Spec, rank: int) -> Finding:
    hello = view.hello(rank)
    model, optimizer = hello.get("model") or {}, hello.get("optimizer") or {}
    trainable, given_count = _trainable(hello), _given(optimizer)
    other_parameters = optimizer.get("others") or []
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
        rank=rank,
        site=optimizer.get("site"),
        confidence=0.8,
        proof=Proof(
            statistic="values that want a gradient and are in no optimizer / values that want one",
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


def _trainable(hello: Hello) -> int:
    """Values of the model that want a gradient."""
    return int((hello.get("model") or {}).get("trainable") or 0)


def _given(optimizer: Mapping[str, Any]) -> int:
    """Values that this optimizer was given, or all optimizers together where that is told."""
    return int(optimizer.get("all_parameters") or optimizer.get("parameters") or 0)


def _once_given(view: RunView, rank: int, trainable: int) -> bool:
    """Whether an optimizer of an earlier stage of the script had them, as that of a teacher that is
    trained first.
    """
    optimizers = (event["optimizer"] for event in told_optimizers(view, rank))
    most_given = max(map(_given, optimizers), default=0)
    return most_given >= (1 - MUCH_WITHOUT) * trainable


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

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        stray, graded = last.get("stray") or 0, last.get("graded") or 0
        is_told = _is_much(last) or _is_of_a_model(last) or last.get("stray_apart")
        if last.get("stray_looks", 0) < ALIKE or not is_told:
            return None
        share, names = stray / graded, last.get("stray_names") or []
        idle = last.get("without_gradient") or 0
        if last.get("stray_waiting", 0) > stray / 2:
            title = f"an optimizer has not stepped: {_of_gradients(last)} unused"
            place = "in an optimizer that has not stepped"
            fix = (
                "call step() of the optimizer that has them; where it begins later, "
                "requires_grad_(False) until then spares their backward"
            )
        else:
            title = f"{_of_gradients(last)} for nobody"
            place = "in no optimizer"
            by_hand = not view.hello(rank).get("optimizer")
            if last.get("stray_held_in"):
                fix = _held_in_plain(last)
            elif idle:
                fix = _replaced_part(names)
            elif last.get("stray_outside", 0) > stray / 2:
                fix = _IN_NO_MODULE
            elif "stray_optimizer_at" in last:
                fix = _rest_has_one(last)
            elif last.get("stray_apart") and not _is_much(last):
                fix = _APART
            else:
                fix = _not_frozen(by_hand)
        return spec.make(
            severity="medium",
            title=f"{title}: {', '.join(names[:2])}",
            evidence=f"{stray:,} of {graded:,} values that have a gradient are {place} and did "
            f"not change ({last['stray_looks']} looks in a row up to step {last['step']}, rank "
            f"{rank}): "
            + ", ".join(names)
            + (f"; the optimizer holds {idle:,} values that get no gradient" if idle else ""),
            fix=fix,
            rank=rank,
            site=_stray_site(last),
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

    return on_ranks(view, "checkup", of_rank)


def _is_much(look: Event) -> bool:
    return (look.get("stray") or 0) > MUCH_WITHOUT * (look.get("graded") or 0)


def _is_of_a_model(look: Event) -> bool:
    """Whether they belong to a model that an optimizer trains the rest of, as a head that was
    forgotten: however few, they stay as they were made.
    """
    return bool(look.get("stray_optimizer_at")) and not look.get("stray_outside")


def _of_gradients(look: Event) -> str:
    """``3 % of the gradients are``; in values where that would say 0 %."""
    stray, graded = look["stray"], look["graded"]
    if _is_much(look):
        return f"{100 * stray / graded:.0f} % of the gradients are"
    verb = "is" if stray == 1 else "are"
    return f"gradients of {counted(stray, 'value')} {verb}"


def _stray_site(look: Mapping[str, Any]) -> str | None:
    """The line that is to be changed, as far as it is known; else where they are used."""
    names = ("held", "thawed", "optimizer", "made")
    sites = (*(f"stray_{name}_at" for name in names), "stray_at", "backward_at")
    return next((look[site] for site in sites if look.get(site)), None)


def _part(missing: int, total: int) -> str:
    if 1000 * missing < total:  # "0.0 %" would say nothing
        verb = "gets" if missing == 1 else "get"
        return f"{counted(missing, 'value')} of {total:,} in the optimizer {verb}"
    return f"{100 * missing / total:.1f} % of the parameters get"


def _not_frozen(by_hand: bool) -> str:
    if by_hand:
        return (
            "update it as the others are, and clear its gradient, which adds up; if it shall stay "
            "as it is, call requires_grad_(False) on it"
        )
    return (
        "call requires_grad_(False) on what shall stay as it is, such as a teacher or a network "
        "that a loss looks through: the backward then leaves its weights out; or give it to an "
        "optimizer"
    )


# Of parameters that lie in a plain list or dict.
_IN_NO_MODULE = (
    "keep them in an attribute of the module, an nn.ParameterList or an nn.ParameterDict: "
    "parameters() passes over what lies in a plain list or dict; or name them to the optimizer"
)


# Of a whole module beside the model.
_APART = (
    "give them to the optimizer, or make their module a part of the model: what a trainer or a "
    "loss holds beside it is in no model.parameters(), nor cleared by model.zero_grad(); if they "
    "shall stay as they are, call requires_grad_(False) on them"
)


def _held_in_plain(look: Mapping[str, Any]) -> str:
    """Modules in a plain list or dict of another."""
    return (
        f"make {look['stray_held_in']}, an nn.ModuleList or nn.ModuleDict: parameters(), "
        "state_dict() and to() pass over what lies in a plain one; where it is hidden on purpose, "
        "call requires_grad_(False) on it"
    )


def _rest_has_one(look: Mapping[str, Any]) -> str:
    """Parameters of a model whose others an optimizer has."""
    site = look.get("stray_optimizer_at")
    optimizer = f"the optimizer made at {site}" if site else "the optimizer"
    if look.get("stray_thawed_at"):
        return (
            f"call add_param_group() of {optimizer} where they are thawed, or make it with all "
            "parameters from the beginning: those without a gradient are passed over"
        )
    return (
        f"give them to {optimizer}, which has the rest of their model; if they shall stay as they "
        "are, call requires_grad_(False) on them"
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
