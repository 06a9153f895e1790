"""Random numbers that begin anew: a seed that is set inside the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

OFTEN = 0.5
"""Calls with one seed, by the steps since the first of them."""


@finding(
    id="RE05",
    name="random numbers begin anew",
    family="reproducibility",
    cause="compute",
    trigger=f"at two looks, 20 steps or more apart, a step draws random numbers from a seed of "
    f"torch.manual_seed that {percent(OFTEN)} of the steps or more have set, 10 at least",
    fix="set the seed once, before the loop",
    no_use="where each step shall draw the same numbers",
    reads="calls of torch.manual_seed; state of torch's CPU generator before the update of a step "
    "that is looked at",
    silent="seeds of other generators (NumPy's, a GPU's, a torch.Generator of one's own); "
    "fork_rng, which takes the seed back",
    traps="a seed that is set for an evaluation: rarer than every other step",
    seen_on=CPU,
)
def begins_anew(view: RunView, spec: Spec) -> Finding | None:
    """Dropout, noise and what is drawn for a batch are the same again and again."""

    def of_rank(rank: int, looks: list[Event]) -> Finding | None:
        seeded = [look for look in looks if _shares_a_seed(look)]
        if len(seeded) < 2 or seeded[-1] is not looks[-1]:
            return None
        last = seeded[-1]
        calls, steps = last["seed_calls"], _steps_since(last)
        site = last.get("seeded_at")
        at = f" at {site}" if site else ""
        return spec.make(
            severity="medium",
            title="random numbers begin anew: steps drop and draw the same again",
            evidence=f"torch.manual_seed set one and the same seed {calls:,} times in {steps:,} "
            f"steps up to step {last['step']}{at}, and these steps draw from it (rank {rank}): a "
            "dropout's masks, noise or samples are the same each time",
            fix=f"set the seed once, before the loop, and not{at or ' in it'}; for numbers that "
            "shall be the same, as of samples to look at, use a torch.Generator of their own or "
            "torch.random.fork_rng()",
            rank=rank,
            site=site,
            confidence=0.9,
            proof=Proof(
                statistic="calls with one seed / steps since the first of them",
                value=100 * calls / steps,
                threshold=100 * OFTEN,
                unit="%",
                formula="calls of torch.manual_seed; torch.initial_seed() is that seed at the "
                "update, and the generator's state is past it",
                inputs=(
                    Input("calls", calls, "", f"checkup event, rank {rank}"),
                    Input("steps", steps, "", f"checkup event, rank {rank}"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


def _shares_a_seed(look: Mapping[str, Any]) -> bool:
    calls = look.get("seed_calls") or 0
    return calls > 0 and calls >= OFTEN * _steps_since(look)


def _steps_since(look: Mapping[str, Any]) -> int:
    """Steps since the first call; the one that is looked at comes after ``step``."""
    return look["step"] + 1 - look["seeded_since"] + 1
