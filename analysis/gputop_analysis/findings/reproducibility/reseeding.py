"""Random numbers that begin anew: a seed that is set inside the loop."""

from __future__ import annotations

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

SURE_LOOKS = 3
"""In a row: a step drew random numbers from the state that the step of the look before began in."""


@finding(
    id="RE05",
    name="random numbers begin anew",
    family="reproducibility",
    cause="compute",
    trigger=f"at {SURE_LOOKS} looks in a row, 20 steps or more apart, a step that draws random "
    "numbers begins with torch's CPU generator in the state of the look before",
    fix="set the seed once, before the loop",
    no_use="where each step shall draw the same numbers",
    reads="state of torch's CPU generator before the forward and before the update of a step that "
    "is looked at",
    silent="steps that draw nothing between the two; dropout on a GPU, whose generator is another",
    traps="a seed that is set once an epoch, whose length divides the distance of the looks: it is "
    "told as well, as each epoch draws the same",
    seen_on=CPU,
)
def begins_anew(view: RunView, spec: Spec) -> Finding | None:
    """Dropout, noise and what is drawn for a batch are the same again and again."""
    for rank, looks in told(view, "checkup").items():
        last = looks[-1]
        count = last.get("reseeded_looks") or 0
        if count < SURE_LOOKS:
            continue
        site = last.get("reseeded_at")
        at = f" at {site}" if site else ""
        return spec.make(
            severity="medium",
            title="random numbers begin anew: steps drop and draw the same again",
            evidence=f"before the forward of step {last['step']} and of the {count} looks before "
            f"it, 20 steps or more apart, torch's generator was in one and the same state, and "
            f"these steps draw from it (rank {rank}): a dropout's masks are the same each time",
            fix=f"set the seed once, before the loop, and not{at or ' in it'}; for numbers that "
            "shall be the same, as of samples to look at, use a torch.Generator of their own or "
            "torch.random.fork_rng()",
            rank=rank if len(view.ranks) > 1 else everybody(view),
            site=site,
            confidence=0.9,
            proof=Proof(
                statistic="looks in a row that began in the same state",
                value=count,
                threshold=SURE_LOOKS - 1,
                unit="looks",
                formula="CRC-32 of torch.get_rng_state()",
                inputs=(Input("looks", count, "", f"checkup event, rank {rank}"),),
            ),
        )
    return None
