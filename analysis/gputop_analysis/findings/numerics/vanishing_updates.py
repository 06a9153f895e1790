"""Updates too small to change a weight of the precision it is kept in."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.wrong_habits import optimizer_site
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

STUCK_SHARE, LOOKS = 0.90, 3


@finding(
    id="NU12",
    name="updates vanish in bf16",
    family="numerics",
    cause="compute",
    trigger=f"in three looks in a row an update leaves more than {percent(STUCK_SHARE)} of the "
    "sampled bf16 values that have a gradient as they were: it is below half a unit in the last "
    "place, 2^-9 of the value",
    fix="weights in float32 with autocast, or an optimizer with stochastic rounding or "
    "float32 master weights",
    no_use="where the weights may not be larger",
    reads="values of a sampled bfloat16 tensor before and after an update",
    silent="weights that are not bfloat16; fewer than three looks",
    traps="the end of a decay, frozen layers",
    seen_on=CPU,
)
def vanishing_updates(view: RunView, spec: Spec) -> Finding | None:
    """bf16 keeps 8 bits: a relative change below 2^-9 is rounded away."""

    def of_rank(rank: int, events: list[Event]) -> Finding | None:
        shares = [share for event in events[-LOOKS:] if (share := _stuck(event)) is not None]
        optimizer = view.hello(rank).get("optimizer") or {}
        foreign = optimizer.get("module") not in ("torch", None) or "compensation" in (
            optimizer.get("state") or {}
        )
        lr = events[-1].get("lr_max") or 0.0
        if len(shares) < LOOKS or min(shares) <= STUCK_SHARE or lr <= 0 or foreign:
            return None
        share = float(np.median(shares))
        return spec.make(
            severity="medium",
            title=f"updates vanish: {100 * share:.0f} % of the bf16 weights do not change in a "
            "step",
            evidence=f"of the sampled values with a gradient, {100 * share:.1f} % were the same "
            f"after the update (median of {len(shares)} looks up to step {events[-1]['step']}, "
            f"rank {rank}, lr {lr:.3g})",
            fix="keep the weights in float32 and use torch.autocast(..., dtype=torch.bfloat16), "
            "or an optimizer with stochastic rounding, or raise the learning rate",
            rank=rank,
            site=optimizer_site(view, rank),
            confidence=0.85,
            proof=Proof(
                statistic="smallest share of unchanged values in the last three looks",
                value=100 * min(shares),
                threshold=100 * STUCK_SHARE,
                unit="%",
                formula="share = values equal before and after the update / values with "
                "a gradient that is not zero",
                inputs=(
                    Input(
                        "values compared",
                        int(events[-1]["bf16_pushed"]),
                        "",
                        f"checkup event, rank {rank}",
                    ),
                    Input("unchanged", int(events[-1]["bf16_stuck"]), "", "the same"),
                    Input("learning rate", float(lr), "", "the same, largest over the groups"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)


def _stuck(event: Event) -> float | None:
    pushed = event.get("bf16_pushed") or 0
    return event["bf16_stuck"] / pushed if pushed >= 100 else None
