"""Python inside the model: loops that take values out of tensors while forward or backward run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gputop_analysis.findings.input.loader_looks import surely
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import STEP_TIME, phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import (
    Share,
    everybody,
    on_device,
    some_ranks,
    steady_share,
)
from gputop_analysis.findings.sites import Site, reading_loops
from gputop_analysis.model import Finding, Input
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

IN_LOOPS, LARGE = 0.1, 0.25
"""Share of the step in such loops, and the one from which it is high."""


@finding(
    id="HO17",
    name="Python loop in the model",
    family="host",
    cause="host",
    trigger=f"loops in Python that take values out of tensors (.item(), .tolist(), float()) take "
    f"more than {percent(IN_LOOPS)} of the step inside forward or backward (lower end of the 95 % "
    f"interval, by stack samples); high above {percent(LARGE)}",
    fix="operators on whole tensors instead of a loop over their elements",
    explains=("CE07",),
    no_use="where each value decides what is done next in Python",
    reads="steps.forward_ns and backward_ns, stack samples of the two phases",
    silent="fewer than five samples in such loops; a GPU, where HO01 and HO02 tell; loops that run "
    "modules",
    traps="a loop over a few values that must be known in Python, such as the sizes of chunks",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(
        phases("forward"),
        STEP_TIME,
    ),
)
def loops_in_model(view: RunView, spec: Spec) -> Finding | None:
    """A model's own code, or an autograd.Function, that goes through elements one by one."""
    for phase in ("forward", "backward"):
        loops = [seen for rank in some_ranks(view) if (seen := _loops(view, rank, phase))]
        if loops:
            worst = max(loops, key=lambda seen: seen.least.mean_ms)
            return _told(view, spec, worst, len(loops) == 1)
    return None


@dataclass(frozen=True, slots=True)
class _Loops:
    """Such loops of one rank inside one phase."""

    phase: str
    whole: Share
    """The phase."""
    least: Share
    """What surely is in the loops."""
    site: Site


def _loops(view: RunView, rank: int, phase: str) -> _Loops | None:
    """None where they take too little, or were not seen often enough."""
    whole = steady_share(view, rank, phase)
    if on_device(view, rank):
        site = None
    else:
        site = reading_loops(view, phase, rank)
    if whole is None or site is None:
        return None
    least = _part(whole, surely(round(site.share * site.samples), site.samples))
    if least.surely_above(IN_LOOPS):
        return _Loops(phase, whole, least, site)
    return None


def _part(share: Share, part: float) -> Share:
    return replace(share, values_ms=share.values_ms * part)


def _told(view: RunView, spec: Spec, seen: _Loops, only: bool) -> Finding:
    phase, share, least, site = seen.phase, seen.whole, seen.least, seen.site
    return spec.make(
        severity="high" if least.surely_above(LARGE) else "medium",
        title=f"a Python loop over elements takes {100 * site.share:.0f} % of the {phase}: "
        f"{site.site}",
        evidence=f"{100 * site.share:.0f} % of {site.samples} stack samples of the {phase} "
        f"({share.mean_ms:.1f} ms of {share.wall_ms:.1f} ms a step) lie in a loop of Python's that "
        f"takes values out of tensors, most often at {site.site}",
        fix=f"write what {site.site} does by operators on whole tensors (argmax, where, gather, "
        "index_select) instead of .item() or .tolist() of each row; or read all values out once, "
        "before the loop",
        rank=share.rank if only else everybody(view),
        site=site.site,
        confidence=0.7,
        recoverable_ms_per_step=least.mean_ms,
        interval_ms_per_step=(least.mean_ms, site.share * share.mean_ms),
        proof=least.proof(
            f"time in such loops, of the {phase},",
            IN_LOOPS,
            f"steps.{phase}_ns",
            "recoverable = the phase x lower end of the interval of the part of its samples in "
            f"such loops = {least.mean_ms:.3f} ms per step",
            Input("samples", site.samples, "", f"stacks events of {phase}"),
            Input("of them in such loops", 100 * site.share, "%", f"stacks events of {phase}"),
        ),
    )
