"""A schedule of updates that is stepped once an epoch."""

from __future__ import annotations

from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.numerics.wrong_habits import schedule_site
from gputop_analysis.findings.registry import Spec
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import counted
from gputop_analysis.view import RunView

RARELY = 20
"""Updates a step of the schedule, as ``gputop_agent/watchers/looks/rate_steps.py`` has it."""


def rarely_stepped(view: RunView, spec: Spec) -> Finding | None:
    """``OneCycleLR`` and its like are made to be stepped with each update."""

    def of_rank(rank: int, looks: list[Event]) -> Finding | None:
        last = looks[-1]
        name, stepped = last.get("rate_rarely"), last.get("rate_stepped") or 0
        if not name or not stepped:
            return None
        length = last.get("rate_length") or 0
        of_all = f" of the {length:,} it is made for" if length else ""
        lines = last.get("rate_stepped_at") or []
        by_update = "call its step() after each optimizer.step()"
        if Facts(view, rank).trainer == "lightning":
            by_update = 'return {"scheduler": ..., "interval": "step"} from configure_optimizers()'
        return spec.make(
            severity="medium",
            title=f"{name} is stepped once in {last['step'] // stepped:,} updates, and made to be "
            "stepped with each",
            evidence=f"at step {last['step']:,} of rank {rank} it has made "
            f"{counted(stepped, 'step')}{of_all}"
            + (f", called at {', '.join(lines)}" if lines else "")
            + "; the learning rate has hardly left where it begins",
            fix=f"{by_update}; or take a schedule of epochs",
            rank=everybody(view),
            site=schedule_site(view, rank) or next(iter(lines), None),
            confidence=0.9,
            proof=Proof(
                statistic="updates a step of the schedule",
                value=last["step"] / stepped,
                threshold=RARELY,
                unit="updates",
                formula="of OneCycleLR and CyclicLR, which torch says to step after each batch",
                inputs=(Input("steps of it", stepped, "", f"checkup event, rank {rank}"),),
            ),
        )

    return on_ranks(view, "checkup", of_rank)
