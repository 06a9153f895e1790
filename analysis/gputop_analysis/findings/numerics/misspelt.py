"""Parameters that were to be frozen or thawed by an attribute that torch does not know."""

from __future__ import annotations

from gputop_analysis.findings.registry import Spec
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import Event, on_ranks, parameter_names
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView


def misspelt(view: RunView, spec: Spec) -> Finding | None:
    """``parameter.require_grad = False``, which changes nothing."""

    def of_rank(rank: int, looks: list[Event]) -> Finding | None:
        last = looks[-1]
        name, values = last.get("misspelt"), last.get("misspelt_values") or 0
        if not name or not values:
            return None
        to = bool(last.get("misspelt_to"))
        wish, is_now = ("are still frozen", False) if to else ("are still trained", True)
        names = parameter_names(last.get("misspelt_names") or [""])
        return spec.make(
            severity="medium",
            title=f"{name} is no attribute of torch's: {values:,} values {wish}: "
            + ", ".join(names[:2]),
            evidence=f"parameters of {values:,} values have {name}={to} and "
            f"requires_grad={is_now}, up to step {last['step']} of rank {rank}: "
            + ", ".join(names),
            fix=f"call requires_grad_({to}) on their module: nothing reads {name}",
            rank=everybody(view),
            site=last.get("misspelt_at"),
            confidence=0.95,
            proof=Proof(
                statistic=f"values of parameters with {name}={to}",
                value=values,
                threshold=0,
                unit="values",
                formula="an attribute of the parameter, where requires_grad says something else",
                inputs=(Input("values", values, "", f"checkup event, rank {rank}"),),
            ),
        )

    return on_ranks(view, "checkup", of_rank)
