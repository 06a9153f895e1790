"""Compute efficiency: a backward through a network that is not updated by it."""

from __future__ import annotations

from statistics import median

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import phases
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

WORTH = 0.05
"""Share of the step; below it is told as info."""
SURE_LOOKS = 3
"""As many as the guest waits for (``watchers/looks/undetached.py``)."""
TIMES_FOR_INTERVAL = 6
"""Between the least and the largest of so many lies their median with 97 % (1 - 2 / 2**6)."""


@finding(
    id="CE14",
    name="result not detached",
    family="compute",
    cause="compute",
    trigger="at three looks in a row, 20 steps or more apart, a backward went through the whole "
    "network of another optimizer, whose gradients were cleared before that one's update; info "
    f"where this takes less than {percent(WORTH)} of the step",
    fix="detach what the other network made, or make it under no_grad; where the loss also goes "
    "through it to its own network, that of the real samples alone",
    explains=("CE07",),
    no_use="where the gradients are read before they are cleared",
    reads="the graphs of losses at the looks of NU08, and how long the part takes that leads to "
    "that network alone",
    silent="a single optimizer, or more than four; graphs of more than 5,000 nodes; fewer than "
    "three looks",
    traps="a critic that a generator's loss goes through: its gradients are cleared, too, but the "
    "way through it is needed",
    seen_on=CPU,
    pictures=(phases("backward"),),
)
def not_detached(view: RunView, spec: Spec) -> Finding | None:
    """A critic's loss that trains the generator in vain."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        last = events[-1]
        times_ms = last.get("took_ms") or []
        took_ms = median(times_ms) if times_ms else None
        wall_ms = view.per_rank[rank].mean_ms("wall_ns")
        backward_at = last.get("backward_at")
        named = ", ".join(filter(None, last.get("names") or [])) or "without a name"
        seldom = took_ms is not None and took_ms < WORTH * wall_ms
        if took_ms is None:
            taken = "what that takes was not measured"
        else:
            taken = f"that takes {took_ms:.2f} ms, where a step takes {wall_ms:.2f} ms"
        return spec.make(
            severity="info" if seldom else "medium",
            title="a backward goes through a network whose gradients are then cleared unused",
            evidence=f"the backward{f' at {backward_at}' if backward_at else ''} computed "
            f"gradients of {last['values']:,} values of another optimizer's "
            f"({last['optimizer']}: {named}), and they were cleared before its update "
            f"({last['looks']} looks up to step {last['step']}, rank {rank}); {taken}",
            fix=_fix(last),
            rank=everybody(view),
            site=last.get("made_at") or backward_at,
            confidence=0.9,
            recoverable_ms_per_step=took_ms,
            interval_ms_per_step=(min(times_ms), max(times_ms))
            if len(times_ms) >= TIMES_FOR_INTERVAL
            else None,
            proof=Proof(
                statistic="looks in a row at which such gradients were cleared before an update "
                "used them",
                value=last["looks"],
                threshold=SURE_LOOKS - 1,
                unit="looks",
                formula="the part of the graph that leads to parameters of one other optimizer "
                "alone, with 90 % or more of their values; recoverable = time of its backward, "
                "once a step",
                inputs=(
                    Input("last look", last["step"], "step", f"undetached event, rank {rank}"),
                    Input("values", last["values"], "", "the same"),
                    Input("step time", wall_ms, "ms", f"steps.wall_ns, rank {rank}"),
                ),
            ),
        )

    return on_ranks(view, "undetached", of_rank)


def _fix(told: Event) -> str:
    """A generator's loss needs the way through its critic, and compares with what that makes of
    real samples in vain, as where features are matched.
    """
    if told.get("is_needed_too"):
        return (
            "call the other network under torch.no_grad() for the inputs that do not come from the "
            "network that this loss trains, as real samples; what it makes of that network's "
            "output needs its graph"
        )
    return (
        "give this loss what the other network made with .detach(), or make it under "
        "torch.no_grad()"
    )
