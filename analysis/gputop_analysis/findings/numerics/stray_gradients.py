"""Gradients for nobody: of parameters that lie in no optimizer that has stepped, and stay as they
are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_analysis.findings.numerics.dead_networks import ALIKE
from gputop_analysis.findings.numerics.left_out_parameters import MUCH_WITHOUT
from gputop_analysis.findings.registry import Spec
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import counted
from gputop_analysis.view import RunView


def for_nobody(view: RunView, spec: Spec) -> Finding | None:
    """Parameters that get gradients, lie in no optimizer that has stepped, and stay as they are: a
    teacher that was not frozen, or an optimizer whose step is forgotten.
    """

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        stray, graded = last.get("stray") or 0, last.get("graded") or 0
        is_told = _is_much(last) or _is_of_a_model(last) or last.get("stray_apart")
        if last.get("stray_looks", 0) < ALIKE or not is_told:
            return None
        names = last.get("stray_names") or []
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
            fix = _fix_of(last, by_hand=not view.hello(rank).get("optimizer"))
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
                value=100 * stray / graded,
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


def _fix_of(look: Event, *, by_hand: bool) -> str:
    """What to do about gradients that no optimizer has, by where their parameters lie."""
    if look.get("stray_held_in"):
        return _held_in_plain(look)
    if look.get("without_gradient"):
        return _replaced_part(look.get("stray_names") or [])
    if look.get("stray_outside", 0) > look["stray"] / 2:
        return _IN_NO_MODULE
    if "stray_optimizer_at" in look:
        return _rest_has_one(look)
    if look.get("stray_apart") and not _is_much(look):
        return _APART
    return _not_frozen(by_hand)


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
