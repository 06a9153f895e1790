"""Ranks against each other: one that is always slow, or slowness that goes round.

The slow rank is the one that waits least for the others. What it costs is the others' wait less its
own, and the cause is the phase in which it takes longer than they do. Comparing step times would
say nothing, since all ranks of a synchronous run step together, and comparing backward times would
name the wrong one, since the wait is inside them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_analysis.align import Aligned
from gputop_analysis.culprit import (
    MIN_EFFECT_MS,
    MIN_EFFECT_SHARE,
    SIGNIFICANCE,
    Culprit,
    find_culprit,
)
from gputop_analysis.findings.dialect import loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.host.page_faults import faults_per_step, less_mapping
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.option import Option
from gputop_analysis.findings.pictures import RANK_WAITS, SLOW_AGAINST_OTHERS
from gputop_analysis.findings.reading_loops import reading_loops
from gputop_analysis.findings.registry import CATALOGUE, Spec, finding
from gputop_analysis.findings.shares import on_device
from gputop_analysis.findings.site import Site, named
from gputop_analysis.findings.sites import called_from, top_site
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.rank_excess import reference
from gputop_analysis.stages import passes_messages
from gputop_analysis.stats import Interval, block_bootstrap
from gputop_analysis.text import percent
from gputop_analysis.view import RunView, once_per_view
from gputop_analysis.waits import ARRIVALS, Waits, waits

SECOND_CAUSE = 0.25
"""A phase with a quarter of the largest excess belongs: a slow device is slow in all."""

OWN_WORK = ("other", "data", "optimizer")
"""Phases without a wait for other ranks in them."""
NEARLY_ALWAYS, MOST = 0.9, 0.5
MUCH = 0.10
"""Of a step. Less is no more than an info between stages, whose work is never quite the same."""

MANY_FAULTS, TIMES_FAULTS = 500.0, 10.0
"""Page faults a step of the slow rank, and times those of any other: 500 take 0.1 to 1 ms."""
LITTLE, LITTLE_ON_CPU = 0.03, 0.08
"""Of a step. So much two ranks of the same work differ where nothing is wrong; on a CPU by what
their memory and caches are like.
"""

ALL_OVER_PHASES, ALL_OVER_SHARE = 3, 0.6
_ALL_OVER = (
    "rank {rank} is slower in all that it does: look at its cores (other programs, their "
    "frequency), at its memory (page faults, NUMA node) and at what it alone has done before the "
    "loop"
)
_INPUT = ("data", "h2d")

CAUSE_OF_PHASE = {
    "backward": "CR01",
    "forward": "CR02",
    "data": "CR03",
    "h2d": "CR03",
    "optimizer": "CR04",
    "other": "CR04",
}


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for."""

    rank: int
    culprit: Culprit
    cost_ms: Interval
    wall_ms: float
    phase: str
    excess_ms: dict[str, float]
    """By phase: its time less the median of the other ranks."""
    waits: Waits

    @property
    def recoverable_ms(self) -> Interval:
        """What mending the cause wins back: no more than the others wait, and no more than the rank
        is longer at it. Titles say this too: what the others lose by that cause.

        The others also wait for what its lateness itself makes slower, such as sums that no longer
        overlap. Arrival times know nothing of those; there the others' waits lie inside their
        phases and make its excess look smaller.
        """
        largest = self.excess_ms[self.phase]
        if largest <= 0 or self.waits.source == ARRIVALS:
            return self.cost_ms
        causes = sum(ms for ms in self.excess_ms.values() if ms >= SECOND_CAUSE * largest)
        scale = min(1.0, causes / self.cost_ms.value)
        return Interval(*(scale * ms for ms in self.cost_ms))

    @property
    def wait_ms(self) -> tuple[float, float]:
        """Mean wait of the slow rank, and of the median one of the others."""
        means = self.waits.ms.mean(axis=0)
        return float(means[self.culprit.column]), float(
            np.median(np.delete(means, self.culprit.column))
        )

    @property
    def is_all_over(self) -> bool:
        """Whether three phases or more take longer, and none of them most of the time."""
        longest = self.excess_ms[self.phase]
        longer = [ms for ms in self.excess_ms.values() if ms >= SECOND_CAUSE * longest]
        return len(longer) >= ALL_OVER_PHASES and longest < ALL_OVER_SHARE * sum(longer)

    @property
    def causes(self) -> str:
        """``forward 6.0 ms, backward 2.1 ms``: where it takes longer, the largest first."""
        largest = self.excess_ms[self.phase]
        by_excess = sorted(self.excess_ms.items(), key=lambda item: -item[1])
        return ", ".join(
            f"{_NAMES.get(phase, phase)} {ms:.1f} ms"
            for phase, ms in by_excess
            if ms > 0 and ms >= SECOND_CAUSE * largest
        )


@once_per_view
def straggler(view: RunView) -> Straggler | None:
    """The persistently slow rank, if there is one beyond doubt."""
    return straggler_at(view, SIGNIFICANCE)


def straggler_at(view: RunView, significance: float) -> Straggler | None:
    """The slow rank where chance makes such a lead at most so often."""
    waited, common = waits(view), view.common
    if waited is None or common is None:
        return None
    wall_ms = float(common.per_step_ms("wall_ns").mean())
    culprit = find_culprit(waited.ms, wall_ms, significance)
    if culprit is None:
        culprit = _by_own_work(common, waited, wall_ms, significance)
    if culprit is None:
        return None
    other_ms = np.delete(waited.ms, culprit.column, axis=1)
    lead = np.median(other_ms, axis=1) - waited.ms[:, culprit.column]
    cost = block_bootstrap(lead, np.ones(len(lead)))
    excess = _excess(view, waited, culprit.column)
    phase = max(excess, key=lambda name: excess[name])
    # where it takes longer at nothing, as on cores that others use, there is no cause to name
    if cost.low > 0 and excess[phase] > 0:
        return Straggler(
            waited.ranks[culprit.column], culprit, cost, wall_ms, phase, excess, waited
        )
    return None


def _by_own_work(
    common: Aligned, waited: Waits, wall_ms: float, significance: float
) -> Culprit | None:
    """The rank that waits least in nearly all steps, where the waits alone vary too much to be sure
    of it, and a phase of its own work is surely longer than the others' by most of that.

    What else runs on a machine makes waits vary; it does not lengthen one phase of one rank alone.
    """
    likely = find_culprit(waited.ms, wall_ms, 1.0)
    if likely is None:
        return None
    waits_least = waited.ms.argmin(axis=1) == likely.column
    if waits_least.mean() < NEARLY_ALWAYS:
        return None
    for phase in OWN_WORK:
        longer = find_culprit(-common.per_step_ms(f"{phase}_ns"), wall_ms, significance)
        if longer and longer.column == likely.column and longer.lead_ms >= MOST * likely.lead_ms:
            return likely._replace(p=longer.p)
    return None


def _excess(view: RunView, waited: Waits, culprit: int) -> dict[str, float]:
    assert view.common is not None
    excess = {}
    for phase in CAUSE_OF_PHASE:
        if phase == "backward":
            times = waited.backward_compute_ms
            if times is None:
                times = view.common.per_step_ms("backward_ns")
        else:
            times = view.common.per_step_ms(f"{phase}_ns")
        means = times.mean(axis=0)
        excess[phase] = float(means[culprit] - np.median(np.delete(means, culprit)))
    return excess


_NAMES = {"other": "host code", "data": "data loading", "h2d": "the copy of the batch"}


def _straggler_with(view: RunView, spec: Spec, advice: str) -> Finding | None:
    culprit = straggler(view)
    if culprit is None or CAUSE_OF_PHASE[culprit.phase] != spec.id:
        return None
    name = _NAMES.get(culprit.phase, culprit.phase)
    site = _where(view, culprit)
    own_wait, theirs = culprit.wait_ms
    host = ""
    if len(view.record.hosts) > 1:
        host = f" on {view.host_of(culprit.rank)}"
    paging = _paging(view, culprit)
    return spec.make(
        severity=_severity(view, culprit),
        title=f"rank {culprit.rank} is slow in {name}: the others lose "
        f"{culprit.recoverable_ms.value:.1f} ms a step",
        evidence=f"rank {culprit.rank}{host} waits {own_wait:.1f} ms a step for the others, they "
        f"wait {theirs:.1f} ms for it ({culprit.waits.source}, {len(culprit.waits.ms):,} steps or "
        f"groups of steps, p at most {culprit.culprit.p:.2g}); it takes longer than "
        f"{reference(len(view.ranks))} in "
        f"{culprit.causes or name}"
        + (f", {site.words}" if site else "")
        + (f"; {paging.words}" if paging else ""),
        fix=paging.fix if paging else _way_out(view, culprit, site, advice),
        rank=culprit.rank,
        host=view.host_of(culprit.rank) or None,
        site=(site.site if site else None) or _line_of_phase(view, culprit),
        confidence=min(0.99, float(1 - culprit.culprit.p)),
        recoverable_ms_per_step=culprit.recoverable_ms.value,
        interval_ms_per_step=(culprit.recoverable_ms.low, culprit.recoverable_ms.high),
        proof=_proof(culprit, site),
    )


def _severity(view: RunView, culprit: Straggler) -> Severity:
    if culprit.cost_ms.low > MUCH * culprit.wall_ms:
        return "high"
    is_little = culprit.recoverable_ms.value < _least_ms(view, culprit)
    return "info" if is_little or passes_messages(view) else "medium"


def _way_out(view: RunView, culprit: Straggler, site: Site | None, advice: str) -> str:
    """What to do: a CPU that is slow in all it does is no matter of a line."""
    has_line = site is not None and site.site is not None
    if culprit.is_all_over and not has_line and not Facts(view, culprit.rank).on_gpu:
        return _ALL_OVER.format(rank=culprit.rank)
    host = view.host_of(culprit.rank)
    return advice.format(rank=culprit.rank, at=named(site, " ({})"), host=host)


def _least_ms(view: RunView, culprit: Straggler) -> float:
    """Milliseconds a step below which it is an info: more where a CPU is slow but in its input."""
    on_gpu = Facts(view, culprit.rank).on_gpu
    return (LITTLE if on_gpu or culprit.phase in _INPUT else LITTLE_ON_CPU) * culprit.wall_ms


@dataclass(frozen=True, slots=True)
class _Paging:
    """Memory that the slow rank maps anew in each step, and the others do not."""

    words: str
    fix: str | Option


def _paging(view: RunView, straggler: Straggler) -> _Paging | None:
    """Where the slow rank alone has many page faults. What a process did before its loop decides
    whether malloc keeps what is freed: it does once a large block has been freed (glibc raises its
    ``M_MMAP_THRESHOLD`` then, mallopt(3)).
    """
    if straggler.phase not in ("forward", "backward", "optimizer"):
        return None
    by_rank = {rank: faults_per_step(view, rank) for rank in view.ranks}
    own_faults = by_rank.pop(straggler.rank)
    other_faults = [faults.per_step for faults in by_rank.values() if faults]
    if own_faults is None or not other_faults:
        return None
    most_of_others = max(other_faults)
    if own_faults.per_step < max(MANY_FAULTS, TIMES_FAULTS * most_of_others):
        return None
    return _Paging(
        f"it has {own_faults.per_step:,.0f} page faults a step, as its memory is mapped anew each "
        f"time, and {reference(len(view.ranks))} {most_of_others:,.0f}",
        less_mapping(view, straggler.rank),
    )


def _where(view: RunView, straggler: Straggler) -> Site | None:
    """Where the samples of its slow phase lie."""
    phase, rank = straggler.phase, straggler.rank
    if phase == "backward":
        return reading_loops(view, (phase,), rank)
    if phase == "h2d":
        return None
    in_update = phase == "optimizer"  # whose work is on tensors
    return top_site(view, phase, rank=rank, all_work=in_update)


def _line_of_phase(view: RunView, straggler: Straggler) -> str | None:
    """The line of the loop that the slow phase begins at."""
    if straggler.phase in ("forward", "backward"):
        return called_from(view, straggler.phase, straggler.rank)
    if straggler.phase == "data":
        return loader_site(Facts(view, straggler.rank))
    return None


def _proof(straggler: Straggler, site: Site | None) -> Proof:
    own_wait, theirs = straggler.wait_ms
    rank, steps = straggler.rank, f"{len(straggler.waits.ms):,} steps or groups of steps"
    inputs = [
        Input(
            f"wait of rank {rank}",
            own_wait,
            "ms per step",
            f"{straggler.waits.source}, mean over {steps}",
        ),
        Input("wait of the median other rank", theirs, "ms per step", straggler.waits.source),
        Input(
            "step time", straggler.wall_ms, "ms", "steps.wall_ns, all ranks, common steady steps"
        ),
        Input(
            "p",
            straggler.culprit.p,
            "",
            f"chance of such a lead among alike ranks, at most {SIGNIFICANCE}",
        ),
        *(
            Input(f"{phase} beyond the median rank", ms, "ms per step", _source(phase, straggler))
            for phase, ms in straggler.excess_ms.items()
        ),
    ]
    if site is not None and site.site is not None:
        inputs.append(
            Input("most sampled line", site.site, "", f"stacks events, {site.samples} samples")
        )
    return Proof(
        statistic="how much longer than the slow rank the typical other rank waits",
        value=straggler.culprit.lead_ms,
        threshold=straggler.culprit.threshold_ms,
        unit="ms per step",
        formula=f"threshold = max({MIN_EFFECT_MS:.0f} ms, {MIN_EFFECT_SHARE * 100:.0f} % of the "
        "step without waiting); p = Student's t of the lead over its standard error (AR(1) or "
        "batch means), times the number of ranks, or that of a phase of its own where load makes "
        "the waits vary; recoverable = mean over steps of (median wait of the others - wait of "
        "the slow rank), at most what it takes longer in the named phases where the waiting is "
        "not inside them",
        inputs=tuple(inputs),
    )


def _source(phase: str, straggler: Straggler) -> str:
    of_ddp = phase == "backward" and straggler.waits.backward_compute_ms is not None
    return "comm.backward_compute_ns" if of_ddp else f"steps.{phase}_ns"


_TRIGGER = (
    "waits least for the others, which wait at least 3 % of the step and 2 ms longer (p "
    "<= 0.01, with drift, of the waits or of a phase of its own work; an info below "
    f"{percent(MUCH)} between ranks that mostly send to one another, and where its own work "
    f"explains less than {percent(LITTLE)} of the step)"
)
_NO_USE = "where what is seen there is the training's own purpose"
_READS = (
    "wait of each rank for the others (by DDP itself, else what is exposed of a phase), "
    "phases of the same steps"
)
_SILENT = (
    "fewer than two ranks; fewer than ten common steps; waits not known; drift that "
    "explains as much"
)
_TRAPS = "compiling or evaluating on one rank, and the warm-up: such steps are left out"
_PICTURES = (RANK_WAITS, SLOW_AGAINST_OTHERS)
"""What the stragglers of all phases have in common."""


@finding(
    id="CR01",
    name="straggler: backward",
    family="ranks",
    cause="straggler",
    trigger=f"a rank {_TRIGGER}, and its backward takes longer",
    fix="look at that rank's device: clocks, temperature, another process on it",
    no_use=_NO_USE,
    reads=_READS,
    silent=_SILENT,
    traps=_TRAPS,
    seen_on=CPU,
    pictures=_PICTURES,
)
def slow_backward(view: RunView, spec: Spec) -> Finding | None:
    """One rank computes its gradients more slowly."""
    if view.ranks and on_device(view, view.ranks[0]):
        gpu = "clocks and temperature of its GPU, "
    else:
        gpu = ""
    return _straggler_with(
        view,
        spec,
        "look at what differs on rank {rank} ({host}): "
        + gpu
        + "another process beside it, CPU affinity, or more "
        "work in its part of the model",
    )


@finding(
    id="CR02",
    name="straggler: forward",
    family="ranks",
    cause="straggler",
    trigger=f"a rank {_TRIGGER}, and its forward takes longer",
    fix="look at what that rank does in forward, and at its device",
    no_use=_NO_USE,
    reads=_READS,
    silent=_SILENT,
    traps=_TRAPS,
    seen_on=CPU,
    pictures=_PICTURES,
)
def slow_forward(view: RunView, spec: Spec) -> Finding | None:
    """One rank takes longer in forward."""
    return _straggler_with(
        view,
        spec,
        "look at what rank {rank} does in forward{at}: longer inputs, host code, a slower device",
    )


@finding(
    id="CR03",
    name="straggler: input",
    family="ranks",
    cause="straggler",
    trigger=f"a rank {_TRIGGER}, and its data wait is longer",
    fix="look at that rank's shard, its storage and its workers",
    no_use=_NO_USE,
    reads=_READS,
    silent=_SILENT,
    traps=_TRAPS,
    seen_on=CPU,
    pictures=_PICTURES,
)
def slow_input(view: RunView, spec: Spec) -> Finding | None:
    """One rank gets its batches late."""
    return _straggler_with(
        view,
        spec,
        "look at the data of rank {rank}{at}: its shard, where that is stored, its num_workers",
    )


@finding(
    id="CR04",
    name="straggler: host",
    family="ranks",
    cause="straggler",
    trigger=f"a rank {_TRIGGER}, and its optimizer or the code around its step takes longer",
    fix="take work that only one rank does out of the loop",
    no_use="where only one rank can do that work and the others need its result",
    reads=_READS,
    silent=_SILENT,
    traps=_TRAPS,
    seen_on=CPU,
    pictures=_PICTURES,
)
def slow_host(view: RunView, spec: Spec) -> Finding | None:
    """One rank does more around its step: logging, metrics, a slower optimizer."""
    return _straggler_with(
        view,
        spec,
        "rank {rank} does work in its loop that the others do not{at}: do it "
        "less often or elsewhere",
    )


assert set(CAUSE_OF_PHASE.values()) <= set(CATALOGUE)
