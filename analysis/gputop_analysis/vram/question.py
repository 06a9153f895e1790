"""A question for an estimate, from the choice of the tier to the advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_analysis.vram.advice import advised, may_advise
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.rules import check
from gputop_analysis.vram.setup import Setup
from gputop_analysis.vram.sizing import sized
from gputop_analysis.vram.tiers import solver_of

if TYPE_CHECKING:
    from gputop_analysis.vram.eventlog import EventLog


def estimate(
    setup: Setup,
    tier: str | None = None,
    capacity: int | None = None,
    *,
    log: EventLog | None = None,
    gpu: str = "",
    advice: bool = True,
) -> Estimate:
    """What a setup needs.

    Args:
        setup: the model and how it is trained.
        tier: ``trace``, ``profile`` or ``formula``; None: a trace if ``log`` is given, else the
            first that covers it.
        capacity: bytes of the GPU that it is to run on; a replay then tells retries and where
            memory runs out.
        log: the events of a trace of this setup, with all layers.
        gpu: the GPU that the largest micro-batch is wanted for; empty: the smallest that fits.
        advice: whether to look for levers and the largest micro-batch, which takes a dozen further
            estimates.

    Raises:
        ValueError: an impossible combination (which rule) or an unknown tier.
        NotCoveredError: the tier does not cover the setup.
        LookupError: no GPU of that name.
    """
    check(setup)
    answer, need = sized(setup, solver_of(setup, tier, log), capacity)
    if advice and may_advise(setup):
        return advised(answer, need, gpu)
    return answer
