"""Compute efficiency: the backward against the forward."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gputop_agent.contracts import Hello
from gputop_analysis.culprit import MIN_EFFECT_MS
from gputop_analysis.findings.advice import MovedSetting, Option
from gputop_analysis.findings.compute.device_samples import samples
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.numerics.wrong_habits import ALIKE, standing
from gputop_analysis.findings.pictures import phases
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import (
    Share,
    device_share,
    everybody,
    on_device,
    some_ranks,
    steady_share,
    typical,
)
from gputop_analysis.findings.stack_samples import samples_of
from gputop_analysis.findings.told import told
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.stats import Interval, block_bootstrap, block_length
from gputop_analysis.text import percent
from gputop_analysis.view import RunView, once_per_view
from gputop_analysis.waits import hidden_wait_ms, mean_wait_ms

USUAL = 2.0
"""A backward has two products for each of the forward; checkpointing repeats the forward."""
LEAST = 2.5
"""No finding asks for less, so that no interval is worked out below."""
FREE_MEMORY = 0.35


@dataclass(frozen=True)
class Passes:
    """Forward and backward of one rank per step."""

    rank: int
    ratio: Interval
    """Backward less the wait for other ranks, over forward."""
    forward_ms: float
    backward_ms: float
    wait_ms: float
    clock: str
    steps: int

    def inputs(self) -> tuple[Input, ...]:
        """For a proof."""
        read = f"rank {self.rank}, {self.steps:,} steady steps, {self.clock} clock"
        return (
            Input("forward", self.forward_ms, "ms", read),
            Input("backward without waiting", self.backward_ms, "ms", read),
            Input("wait for other ranks, taken off", self.wait_ms, "ms", "comm.wait_ns, mean"),
            Input("ratio, upper end of its interval", self.ratio.high, "", "block bootstrap"),
        )


def passes(view: RunView, rank: int) -> Passes | None:
    """None: too little measured, or a wait inside the backward not told from computing."""
    forward, backward = _forward(view, rank), steady_share(view, rank, "backward")
    if forward is None or backward is None or forward.mean_ms < 0.2:
        return None
    wait_ms = _inside_backward_ms(view, rank)
    if not np.isfinite(wait_ms):
        return None
    computing = np.maximum(backward.values_ms - wait_ms * backward.counts, 0.0)
    if computing.sum() <= LEAST * forward.values_ms.sum():
        return None
    block = block_length(computing / np.maximum(forward.values_ms, 1e-9))
    ratio = block_bootstrap(computing, forward.values_ms, block)
    mean_ms = float(computing.sum() / backward.counts.sum())
    return Passes(rank, ratio, forward.mean_ms, mean_ms, wait_ms, forward.clock, forward.steps)


def _inside_backward_ms(view: RunView, rank: int) -> float:
    """Waiting to take off the backward; none where Python calls collectives. NaN: not known."""
    hidden = hidden_wait_ms(view, rank)
    elsewhere = view.world_size == 1 or mean_wait_ms(view, rank) == mean_wait_ms(view, rank)
    return 0.0 if hidden != hidden and elsewhere else hidden


def _forward(view: RunView, rank: int) -> Share | None:
    return _timed(view, rank, "forward")


def _timed(view: RunView, rank: int, phase: str) -> Share | None:
    """On a device by its own clock only: the host's would see launches."""
    if on_device(view, rank):
        return device_share(view, rank, phase)
    return steady_share(view, rank, phase)


@once_per_view
def _typical(view: RunView) -> Passes | None:
    """The rank whose forward is the lower median: 1024 intervals would take too long."""
    forward = typical(_forward(view, rank) for rank in some_ranks(view))
    return passes(view, forward.rank) if forward else None


LONG_BACKWARD, CHECKPOINTED = 3.0, 2.7
"""Times the forward that a backward takes, without and with activation checkpointing."""
_GRAD = "autograd.grad("
ENOUGH_SAMPLES, ALL_ASKED, ASKED_STEP = 30, 0.9, 0.10
"""Stack samples of the backward; the part of them from which all gradients are asked for so; part
of a step.
"""
SHARED, REPEATED = 0.3, 0.15
"""Part of a later backward's graph that one before has gone through; part of forward and backward
that is repeated.
"""


@finding(
    id="CE07",
    name="backward far longer than forward",
    family="compute",
    cause="compute",
    trigger=f"backward, without the wait for other ranks, above {LONG_BACKWARD:g} times the "
    "forward (lower end of the 95 % interval) and no activation checkpointing; medium where "
    "backward() makes a graph of the gradients, or a GAN does; or several backwards a step with "
    "retain_graph=True go through the same graph; or autograd.grad without a graph takes over "
    f"{percent(ASKED_STEP)} of the step besides the update's own backward",
    fix="create_graph and retain_graph only where gradients of gradients are "
    "needed, and not at each step",
    no_use="where each step needs gradients of gradients",
    reads="steps.backward_ns less the wait for other ranks, against forward_ns; the graphs of a "
    "step's losses, at the looks of NU08",
    silent="fewer than 20 steady steps; activation checkpointing; a wait that is not known; "
    "meta-learning, which differentiates its gradients of weights; a loss made of several "
    "derivatives, as that of a differential equation; no graph of gradients, and as "
    "long a time between the phases, where a loss may be made",
    traps="communication inside backward, which is taken off first",
    seen_on=CPU,
    pictures=(phases("backward"),),
)
def long_backward(view: RunView, spec: Spec) -> Finding | None:
    """The gradients are themselves differentiated, or the backward goes through parts twice."""
    return _through_again(view, spec) or _asked_besides(view, spec) or _long_backward(view, spec)


def _through_again(view: RunView, spec: Spec) -> Finding | None:
    """Several losses of one step, with a backward each through a graph that they share."""
    for rank, events in told(view, "checkup").items():
        repeated = events[-1].get("graph_again") or []
        looks = standing(events, lambda event: event.get("graph_again"))
        backwards, shared = len(repeated) + 1, sum(repeated)
        forward, backward = _forward(view, rank), steady_share(view, rank, "backward")
        if looks < ALIKE or shared < SHARED * len(repeated) or not forward or not backward:
            continue
        backward_ms = backward.mean_ms - _inside_backward_ms(view, rank)
        total = backward_ms + forward.mean_ms
        repeated_ms = backward_ms * shared / backwards
        if not repeated_ms >= REPEATED * total:  # nor where the wait in it is not known
            continue
        return spec.make(
            severity="medium",
            title=f"{backwards} backwards a step go through the same graph: one of the sum does it",
            evidence=f"{looks} looks up to step {events[-1]['step']} of rank {rank} found "
            f"{backwards} calls of backward with retain_graph=True behind one forward; "
            f"{100 * shared / len(repeated):.0f} % of the later ones' graph was gone through "
            f"before; backward takes {backward_ms:.1f} ms a step",
            fix="add the losses up and call backward() once: the gradients are the same",
            rank=everybody(view),
            site=events[-1].get("backward_at"),
            confidence=0.85,
            recoverable_ms_per_step=repeated_ms,
            interval_ms_per_step=(0.0, min(2 * repeated_ms, backward_ms)),
            proof=Proof(
                statistic="part of the backward that is a repetition / forward and backward",
                value=100 * repeated_ms / total,
                threshold=100 * REPEATED,
                unit="%",
                formula="repeated = backward x nodes gone through before / nodes of all backwards "
                "of a step; nodes count alike, so it is an estimate",
                inputs=(
                    Input("forward", forward.mean_ms, "ms", f"steps.forward_ns, rank {rank}"),
                    Input("backward", backward_ms, "ms", f"steps.backward_ns, rank {rank}"),
                    Input("backwards a step", backwards, "", "checkup event"),
                ),
            ),
        )
    return None


class _AskedGradients(NamedTuple):
    """Stack samples of ``autograd.grad`` calls that make no graph, among those of the backward."""

    site: str
    samples: int
    of: int

    @property
    def share(self) -> float:
        """Of the backward's time."""
        return self.samples / self.of


def _asked_gradients(view: RunView, rank: int) -> _AskedGradients | None:
    """None where there are none, or where no other backward leads to the update."""
    sites, total = Counter[str](), 0
    for sample in samples_of(view, ("backward",), rank):
        total += sample.count
        if _GRAD in sample.code and "create_graph" not in sample.code:
            sites[sample.path[-1]] += sample.count
    asked_samples = sum(sites.values())
    if not asked_samples or total < ENOUGH_SAMPLES or asked_samples > ALL_ASKED * total:
        return None
    return _AskedGradients(sites.most_common(1)[0][0], asked_samples, total)


def _asked_besides(view: RunView, spec: Spec) -> Finding | None:
    """Gradients that are asked for besides those of the update, as to look at how two losses pull;
    where the update is made of them there is no other backward.
    """
    for rank in some_ranks(view):
        hello, backward = view.hello(rank), steady_share(view, rank, "backward")
        asked = _asked_gradients(view, rank)
        is_inner = hello.get("inner_gradients")
        if asked is None or backward is None or hello.get("create_graph") or is_inner:
            continue
        backward_ms = backward.mean_ms - _inside_backward_ms(view, rank)
        asked_ms = backward_ms * asked.share
        if not asked_ms > max(ASKED_STEP * backward.wall_ms, MIN_EFFECT_MS):
            continue
        return spec.make(
            severity="medium",
            title=f"gradients asked for besides the update's take {asked_ms:.1f} ms a step",
            evidence=f"{asked.samples} of {asked.of} stack samples of the backward lie in "
            f"autograd.grad at {asked.site}, which makes no graph, of {backward_ms:.1f} ms a step; "
            "the update has a backward of its own",
            fix="ask for them every N steps where they are only looked at; the update's own "
            "gradients, p.grad after backward(), cost nothing",
            rank=everybody(view),
            site=asked.site,
            confidence=0.7,
            recoverable_ms_per_step=asked_ms,
            interval_ms_per_step=(0.5 * asked_ms, min(1.5 * asked_ms, backward_ms)),
            proof=Proof(
                statistic="time in autograd.grad without a graph / step time",
                value=100 * asked_ms / backward.wall_ms,
                threshold=100 * ASKED_STEP,
                unit="%",
                formula="backward x samples in such calls / samples of the backward",
                inputs=(
                    Input("backward", backward_ms, "ms", f"steps.backward_ns, rank {rank}"),
                    Input("samples in such calls", asked.samples, "", f"stacks, rank {rank}"),
                    Input("samples of the backward", asked.of, "", "the same"),
                ),
            ),
        )
    return None


def _long_backward(view: RunView, spec: Spec) -> Finding | None:
    typical_rank = _typical(view)
    if (
        typical_rank is None
        or typical_rank.ratio.low <= LONG_BACKWARD
        or any(view.hello(rank).get("checkpointing") for rank in view.ranks)
    ):
        return None
    hello = view.hello(typical_rank.rank)
    creates_graph = bool(hello.get("create_graph"))
    is_needed = creates_graph and _is_needed(hello)
    if hello.get("meta_gradients") or hello.get("derivatives"):
        return None
    if not creates_graph and _may_be_the_loss(view, typical_rank):
        return None
    extra_ms = max(0.0, typical_rank.backward_ms - USUAL * typical_rank.forward_ms)
    if creates_graph:
        fix = (
            "take gradients of gradients (create_graph=True) every few steps only, as lazy R1 "
            "regularisation does, unless the loss is made of them, as of forces"
        )
    else:
        fix = (
            "look with torch.profiler at what the backward does: an embedding without "
            "sparse=True, retain_graph, a custom autograd.Function"
        )
    return spec.make(
        severity="medium" if creates_graph and not is_needed else "info",
        title=f"backward takes {typical_rank.ratio.value:.1f} times as long as forward",
        evidence=f"{typical_rank.backward_ms:.1f} ms against {typical_rank.forward_ms:.1f} ms a "
        f"step, {typical_rank.clock} clock (95 % interval of the ratio "
        f"{typical_rank.ratio.low:.1f} to {typical_rank.ratio.high:.1f}); twice is usual without "
        "activation checkpointing; "
        + ("create_graph=True was seen" if creates_graph else "create_graph=True was not seen"),
        fix=fix,
        rank=everybody(view),
        site=hello.get("create_graph_at") or None,
        confidence=0.8 if creates_graph else 0.5,
        recoverable_ms_per_step=extra_ms if creates_graph else None,
        interval_ms_per_step=(0.0, typical_rank.backward_ms) if creates_graph else None,
        proof=Proof(
            statistic="lower end of the 95 % interval of backward / forward",
            value=typical_rank.ratio.low,
            threshold=LONG_BACKWARD,
            unit="",
            formula=f"recoverable = backward - {USUAL:.0f} x forward, where create_graph was seen",
            inputs=typical_rank.inputs(),
        ),
    )


def _is_needed(hello: Hello) -> bool:
    """Whether the loss may be made of a gradient, as that of a force field is: ``autograd.grad``
    alone makes the graph, and no second optimizer speaks for a penalty of a GAN.
    """
    optimizer = hello.get("optimizer") or {}
    return not hello.get("create_graph_by_backward") and not optimizer.get("others")


def _may_be_the_loss(view: RunView, long: Passes) -> bool:
    """Whether what runs between the phases, with the forward, may be all that the backward goes
    back through: a Gaussian process has its work in the loss.
    """
    between = _timed(view, long.rank, "other")
    between_ms = between.mean_ms if between else 0.0
    return long.backward_ms <= LONG_BACKWARD * (long.forward_ms + between_ms)


@finding(
    id="CE08",
    name="needless activation checkpointing",
    family="compute",
    cause="compute",
    trigger=f"activation checkpointing, backward above {CHECKPOINTED:g} times the forward, and "
    f"{percent(FREE_MEMORY)} of the GPU's memory free at the peak",
    fix="checkpoint fewer layers",
    no_use="without a GPU of the run; where the peak is needed for evaluations",
    reads="backward against forward, hello.checkpointing, free device memory",
    silent="no GPU; no checkpointing seen",
    traps="a peak that only evaluation reaches",
)
def needless_checkpointing(view: RunView, spec: Spec) -> Finding | None:
    """The forward is computed twice to save memory that nobody needs."""
    typical_rank = _typical(view)
    if (
        typical_rank is None
        or typical_rank.ratio.low <= CHECKPOINTED
        or not view.hello(typical_rank.rank).get("checkpointing")
    ):
        return None
    shares = [gpu.free_memory_share() for rank in view.ranks if (gpu := samples(view, rank))]
    free = [share for share in shares if share is not None]
    if len(free) < len(view.ranks) or min(free) <= FREE_MEMORY:
        return None
    again_ms = min(
        typical_rank.forward_ms,
        max(0.0, typical_rank.backward_ms - USUAL * typical_rank.forward_ms),
    )
    return spec.make(
        severity="medium",
        title=f"activation checkpointing, although {min(free) * 100:.0f} % of the GPU's memory is "
        "never used",
        evidence=f"backward {typical_rank.backward_ms:.1f} ms is {typical_rank.ratio.value:.1f} "
        f"times the forward of {typical_rank.forward_ms:.1f} ms a step, {typical_rank.clock} "
        "clock: it computes the forward again",
        fix=Option(
            "switch checkpointing off for as many layers as fit: "
            "model.gradient_checkpointing_disable(), or checkpoint every second layer",
            lever=MovedSetting("activation checkpointing", -1),
        ),
        rank=everybody(view),
        confidence=0.8,
        recoverable_ms_per_step=again_ms,
        interval_ms_per_step=(0.0, typical_rank.forward_ms),
        proof=Proof(
            statistic="memory that is free at the peak, on the fullest GPU",
            value=100 * min(free),
            threshold=100 * FREE_MEMORY,
            unit="%",
            formula=f"recoverable = backward - {USUAL:.0f} x forward, at most the forward that is "
            "computed again",
            inputs=(
                *typical_rank.inputs(),
                Input("checkpointing", "seen", "", "hello.checkpointing"),
            ),
        ),
    )
