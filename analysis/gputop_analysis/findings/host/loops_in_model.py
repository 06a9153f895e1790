"""Python inside the model: loops that take values out of tensors while forward or backward run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.loss_spikes import networks_beside
from gputop_analysis.findings.pictures import STEP_TIME, phases
from gputop_analysis.findings.reading_loops import reading_loops
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import (
    Share,
    everybody,
    on_device,
    some_ranks,
    steady_share,
    whole_share,
)
from gputop_analysis.model import Finding, Input
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

IN_LOOPS, LARGE = 0.1, 0.25
"""Share of the step in such loops, and the one from which it is high."""
SURELY = 0.05
"""Share of the step that surely lies in them: samples of a phase are few."""
PHASES = ("forward", "backward")


@finding(
    id="HO17",
    name="Python loop in the model",
    family="host",
    cause="host",
    trigger=f"loops in Python that take values out of tensors (.item(), .tolist(), float()) take "
    f"more than {percent(IN_LOOPS)} of the step inside forward and backward, surely more than "
    f"{percent(SURELY)} (lower end of the 95 % interval, by stack samples); high where that is "
    f"above {percent(LARGE)}",
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
    loops = [rank_loops for rank in some_ranks(view) if (rank_loops := _loops(view, rank))]
    if not loops:
        return None
    worst = max(loops, key=lambda rank_loops: rank_loops.least.mean_ms)
    return _told(view, spec, worst, len(loops) == 1)


@dataclass(frozen=True, slots=True)
class _Loops:
    """Such loops of one rank inside forward and backward."""

    phases: str
    """``the forward``, or both where a checkpointed forward is computed again in the backward."""
    whole: Share
    """The phases."""
    likely: Share
    least: Share
    """What surely is in the loops."""
    most: Share
    site: str
    samples: int


def _loops(view: RunView, rank: int) -> _Loops | None:
    """None where they take too little, or were not seen often enough."""
    if on_device(view, rank):
        return None
    site_of = {
        phase: site
        for phase in PHASES
        if (site := reading_loops(view, _sampled_as(view, phase), rank))
    }
    wholes = {phase: share for phase in site_of if (share := _share(view, rank, phase))}
    if not wholes:
        return None
    sites = [site_of[phase] for phase in wholes]
    likely = [_part(wholes[phase], site_of[phase].share) for phase in wholes]
    least = [_part(wholes[phase], site_of[phase].least_share) for phase in wholes]
    most = [_part(wholes[phase], site_of[phase].most_share) for phase in wholes]
    mostly = max(range(len(sites)), key=lambda index: likely[index].mean_ms)
    loops = _Loops(
        phases=" and ".join(wholes) if len(wholes) > 1 else f"the {next(iter(wholes))}",
        whole=_together(list(wholes.values())),
        likely=_together(likely),
        least=_together(least),
        most=_together(most),
        site=sites[mostly].site or "",
        samples=sum(site.samples for site in sites),
    )
    if loops.likely.surely_above(IN_LOOPS) and loops.least.surely_above(SURELY):
        return loops
    return None


def _share(view: RunView, rank: int, phase: str) -> Share | None:
    """Of the steady steps; of all but the first where each evaluates, as a policy does to act."""
    return steady_share(view, rank, phase) or whole_share(
        view, rank, lambda rows: rows[f"{phase}_ns"]
    )


def _sampled_as(view: RunView, phase: str) -> tuple[str, ...]:
    """Phases whose samples tell of one: forwards without gradients that turn out to be training, as
    of a policy that acts, are sampled as evaluation and counted as forward.
    """
    if phase == "forward" and networks_beside(view):
        return phase, "eval"
    return (phase,)


def _together(shares: list[Share]) -> Share:
    """Several phases of the same steps as one."""
    return replace(shares[0], values_ms=sum(share.values_ms for share in shares))


def _part(share: Share, part: float) -> Share:
    return replace(share, values_ms=share.values_ms * part)


def _told(view: RunView, spec: Spec, loops: _Loops, only: bool) -> Finding:
    share, likely, least = loops.whole, loops.likely, loops.least
    part = f"{100 * likely.mean_ms / share.mean_ms:.0f} %"
    return spec.make(
        severity="high" if least.surely_above(LARGE) else "medium",
        title=f"a Python loop over elements takes {part} of {loops.phases}: {loops.site}",
        evidence=f"{part} of {loops.samples} stack samples of {loops.phases} "
        f"({share.mean_ms:.1f} ms of {share.wall_ms:.1f} ms a step) lie in a loop of Python's that "
        f"takes values out of tensors, most often at {loops.site}",
        fix=f"write what {loops.site} does by operators on whole tensors (argmax, where, gather, "
        "index_select) instead of .item() or .tolist() of each row; or read all values out once, "
        "before the loop",
        rank=share.rank if only else everybody(view),
        site=loops.site,
        confidence=0.7,
        recoverable_ms_per_step=likely.mean_ms,
        interval_ms_per_step=(least.mean_ms, loops.most.mean_ms),
        proof=least.proof(
            f"time in such loops, of {loops.phases},",
            SURELY,
            "steps.forward_ns, steps.backward_ns",
            "each phase x lower end of the interval of the part of its samples in such loops = "
            f"{least.mean_ms:.3f} ms per step; recoverable = each phase x that part = "
            f"{likely.mean_ms:.3f} ms per step, which is above {percent(IN_LOOPS)} of a step",
            Input("samples", loops.samples, "", f"stacks events of {loops.phases}"),
            Input("of them in such loops", likely.mean_ms / share.mean_ms, "", "the same"),
        ),
    )
