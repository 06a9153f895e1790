"""Host and Python: what keeps the training thread from its work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gputop_analysis.findings.input.epochs import lines_of, started_anew
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import GC_TIME, STEP_TIME, phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.rollouts import has_package_draw, is_the_world
from gputop_analysis.findings.shares import (
    Share,
    device_share,
    everybody,
    most_of,
    on_device,
    only_on,
    run_queue,
    share_of_all,
    share_over,
    some_ranks,
    typical,
    worst,
)
from gputop_analysis.findings.site import Site, named
from gputop_analysis.findings.sites import heaviest_line, line_with, runs_models_in_turn, top_site
from gputop_analysis.model import Finding, Input, Severity
from gputop_analysis.series import RankSeries
from gputop_analysis.text import MISSING, counted, percent
from gputop_analysis.view import Array, RunView

PAUSE, HABIT = 20, 3
"""A step so many times as long as the median one is a pause; so many are the loop's habit."""

LARGE_PART = 0.35
"""Of a step: so much host code is worth a look although no line holds most of it."""
NESTED = 2
"""Loops in each other whose operators on tensors are host code, where they take a large part: they
go through the elements one by one.
"""
PART_OF_TWO = 0.25
"""The same where two lines hold most of it together."""
PART_IN_HELPER = 0.15
"""The same where both are of one function that the loop calls."""
SEEN_FORWARD = 0.1
"""Of the backward; a forward takes about half of it (Kaplan et al. 2020, section 2.1)."""
LEAST_LEFT = 0.5
"""Part of a step that is left without the waiting for a core; where it is less, whose waiting that
was is not exact enough to take it off, and the host code is no more than its part of the CPU time.
"""


COLLECTING = 0.01
"""Share of the time in the collector."""


@finding(
    id="HO03",
    name="garbage collection",
    family="host",
    cause="host",
    trigger=f"Python's garbage collector takes more than {percent(COLLECTING)} of the time (lower "
    "end of the 95 % interval) in steps that compile nothing, in three pauses or more",
    fix="gc.freeze() after the set-up, or gc.disable() and gc.collect() every N steps on all ranks",
    no_use=(
        "gc.freeze: where the objects are made anew in each step; at the same step "
        "on all ranks: with one rank"
    ),
    reads="steps.gc_ns, gc events",
    silent="fewer than 20 steady steps",
    traps="gc.collect() called by the script: then the fix is to call it less",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(
        GC_TIME,
        STEP_TIME,
    ),
)
def garbage_collection(view: RunView, spec: Spec) -> Finding | None:
    """The collector walks over many live objects, again and again."""
    shares = [_collecting(view, rank) for rank in most_of(view, "gc_ns")]
    gc = worst(shares)
    if gc is None or not gc.surely_above(COLLECTING) or gc.mean_ms < 0.05:
        return None
    pauses = list(view.events("gc", rank=gc.rank))
    longest = max(pauses, key=lambda event: event.get("duration_ms", 0), default=None)
    if longest:
        pauses_text = (
            f"; {counted(len(pauses), 'pause')} above 10 ms, the longest "
            f"{longest.get('duration_ms', 0):.0f} ms at step {longest.get('step', MISSING)}"
        )
    else:
        pauses_text = ""
    asked_at = line_with(view, "gc.collect", gc.rank)
    return spec.make(
        severity="high" if gc.share.low > 0.10 else "medium",
        title=f"garbage collection takes {gc.share.value * 100:.1f} % of the time",
        evidence=f"{gc.ms.value:.2f} ms of {gc.wall_ms:.1f} ms a step, {gc.percent}{pauses_text}"
        + (f"; gc.collect is called at {asked_at}" if asked_at else ""),
        fix=(
            *((f"collect less often at {asked_at}",) if asked_at else ()),
            "call gc.collect(); gc.freeze() once after the set-up, so that long-lived objects are "
            "not walked again",
            "gc.disable() and one gc.collect() every 1000 steps, at the same step on all ranks",
        ),
        rank=only_on(gc, shares),
        site=asked_at,
        recoverable_ms_per_step=gc.ms.value,
        interval_ms_per_step=(gc.ms.low, gc.ms.high),
        proof=gc.proof("garbage collection", COLLECTING, "steps.gc_ns"),
    )


def _collecting(view: RunView, rank: int) -> Share | None:
    """Time in the collector outside of compilation; None where one or two pauses are all of it."""
    series = view.per_rank[rank]
    share = share_of_all(
        series, series.after_set_up & ~series.compiling, lambda rows: rows["gc_ns"]
    )
    if share is not None and np.count_nonzero(share.values_ms) >= HABIT:
        return share
    return None


UNATTRIBUTED = 0.1
"""Share of the step outside the named phases."""


@finding(
    id="HO06",
    name="host code between steps",
    family="host",
    cause="host",
    trigger=f"time outside the named phases above {percent(UNATTRIBUTED)} of the step, without "
    "its waiting for a core where that is less than half of it (lower end of the 95 % interval); "
    f"of operators on tensors inside two loops, in which no model runs, {percent(PART_OF_TWO)}",
    fix="take the named line out of the loop, or do it less often",
    no_use="where the line is needed in each step",
    reads="steps.other_ns, stack samples of the other phase, process.run_wait_ns_total",
    silent=(
        "fewer than 20 steady steps; most samples inside torch, which is work; a pause that "
        "came once or twice; only an info where most of the time is waiting for a core (IN04), "
        "where no line was seen five times, or takes as "
        "much by itself, or it is the world of a rollout as a whole, or the line that has a "
        "package draw what is trained on, or the line of a solver or "
        "sampler that runs the model in a loop of its own, or holds most while "
        f"what was seen as forward takes less than {percent(SEEN_FORWARD)} of the backward"
    ),
    traps="a loss function outside the model: it is other time, and useful",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(
        phases("other"),
        STEP_TIME,
    ),
)
def unattributed_host_time(view: RunView, spec: Spec) -> Finding | None:
    """The user's own code in the loop: logging, metrics, preprocessing, sleeping."""
    other = typical(_between_phases(view, rank) for rank in some_ranks(view))
    if other is None or not other.surely_above(UNATTRIBUTED) or other.mean_ms < 0.5:
        return None
    site = top_site(view, "other", rank=other.rank)
    without_torch = _without_torch(other, site)
    if site is not None and site.torch_share:
        looped = top_site(view, "other", rank=other.rank, nested=NESTED)
        by_element = _without_torch(other, looped)
        if named(looped) and by_element.share.low > max(PART_OF_TWO, without_torch.share.value):
            return _host_code(view, spec, by_element, looped, "medium")
    if not without_torch.surely_above(UNATTRIBUTED) or _builds_loader(view, other.rank, site):
        return None
    severity = _severity(without_torch, site, view.per_rank[other.rank])
    if severity != "info" and site is not None and _is_the_models(view, other.rank, site):
        severity = "info"
    if _mostly_waits(view, other.rank):
        return _host_code(view, spec, without_torch, site, "info")
    if severity == "info":
        line = heaviest_line(view, "other", other.rank)
        is_large = line is not None and line.least_share * other.share.low > UNATTRIBUTED
        if line and is_large and not has_package_draw(view, other.rank, line):
            of_line = replace(other, values_ms=other.values_ms * line.share)
            return _host_code(view, spec, of_line, line, "medium")
    return _host_code(view, spec, without_torch, site, severity)


def _mostly_waits(view: RunView, rank: int) -> bool:
    """Whether the rank waits for a core most of the time (IN04): how what is left is split between
    the phases is told from the little CPU time that it gets.
    """
    queue = run_queue(view, rank)
    return queue is not None and 1 - queue.value < LEAST_LEFT


def _is_the_models(view: RunView, rank: int, site: Site) -> bool:
    """Whether the place is the world that a policy acts in, or what runs the model in turn."""
    if is_the_world(view, rank, site) or has_package_draw(view, rank, site):
        return True
    return site.site is not None and runs_models_in_turn(view, rank, site.site)


def _without_torch(other: Share, site: Site | None) -> Share:
    """The time without what is tensor work."""
    in_torch = site.torch_share if site else 0.0
    return replace(other, values_ms=other.values_ms * (1 - in_torch))


_DRAW_TOGETHER = (
    "draw more texts in one call, or have an engine that is made for it (vLLM, SGLang) draw them: "
    "this is what the package does between two calls of the network"
)


def _host_code(
    view: RunView, spec: Spec, other: Share, site: Site | None, severity: Severity
) -> Finding:
    in_torch = site.torch_share if site else 0.0
    is_drawing = site is not None and has_package_draw(view, other.rank, site)
    if severity != "info" and site is not None and named(site):
        other = _users_own(other, site)
    return spec.make(
        severity=severity,
        title=f"host code takes {other.share.value * other.part_of_step * 100:.0f} % of each step, "
        f"{other.ms.value:.1f} ms" + named(site, ": {}"),
        evidence=f"{other.of_step} are neither data, forward, backward nor optimizer: "
        f"{other.percent}, {other.clock} clock"
        + (f"; {site.words}" if site else "; no line was seen often"),
        fix=_DRAW_TOGETHER
        if is_drawing
        else f"look at {named(site) or 'the code between the optimizer step and the next batch'}: "
        "do it every N steps, in a background process, or not at all",
        rank=everybody(view),
        site=site.site if site else None,
        confidence=0.9 if named(site) else 0.7,
        recoverable_ms_per_step=None if is_drawing else other.ms.value,
        interval_ms_per_step=None if is_drawing else (other.ms.low, other.ms.high),
        proof=other.proof(
            "host code",
            UNATTRIBUTED,
            "steps.other_ns" if other.clock == "host" else "device.other_ms",
            "recoverable = sum(other - garbage collection - gputop's own work - waiting for a "
            "core) / steps x (1 - part inside torch), less a trainer's own code = "
            f"{other.mean_ms:.3f} ms per step",
            Input("part inside torch", 100 * in_torch, "%", "stacks events of the other phase"),
        ),
    )


def _severity(other: Share, site: Site | None, series: RankSeries) -> Severity:
    """Info for a trainer's code, for little that no one line holds (many small needs), and where
    much that no one line holds may be the model's own work.
    """
    if site is None:
        return "info"
    other = _users_own(other, site)
    if not other.surely_above(UNATTRIBUTED):
        return "info"
    if site.beside:
        of_two = PART_IN_HELPER if site.is_of_one_function else PART_OF_TWO
        return "medium" if other.share.low > of_two else "info"
    if named(site):
        return "high" if other.share.low > 0.25 else "medium"
    if other.share.low > LARGE_PART and not _forward_is_elsewhere(series):
        return "medium"
    return "info"


def _forward_is_elsewhere(series: RankSeries) -> bool:
    """Whether backward works on far more than what was seen as forward: a program that calls other
    methods of its model than its ``forward`` has the model's work between the phases.
    """
    forward, backward = (
        float(np.sum(series.steady_rows[f"{phase}_ns"])) for phase in ("forward", "backward")
    )
    return forward < SEEN_FORWARD * backward


def _builds_loader(view: RunView, rank: int, site: Site | None) -> bool:
    """Whether the line makes a loader again and again, which IN15 reports."""
    lines = lines_of(view.hello(rank).get("dataloader") or {})
    line = site.site if site is not None else None
    return line is not None and line.split(" ")[0] in lines and started_anew(view) is not None


def _users_own(other: Share, site: Site) -> Share:
    """The time without what a trainer does in its own code."""
    elsewhere = site.trainers_share / max(1 - site.torch_share, 1e-9)
    return replace(other, values_ms=other.values_ms * (1 - min(1.0, elsewhere)))


def _between_phases(view: RunView, rank: int) -> Share | None:
    """On the device's clock where one computes: the host's counts its waits (loss.item())."""
    if on_device(view, rank):
        return device_share(view, rank, "other")
    queue = run_queue(view, rank)
    waiting = queue.value if queue else 0.0
    series = view.per_rank[rank]
    mask = series.after_set_up & ~_accidents(series)
    busy_share = 1 - waiting
    if busy_share < LEAST_LEFT:
        return share_over(series, mask, lambda rows: _at_most_by_cpu_ns(rows, waiting))
    own_share = share_over(
        series, mask, lambda rows: np.maximum(_users_own_ns(rows) - _queued_ns(rows, waiting), 0)
    )
    return own_share and replace(
        own_share, walls_ms=own_share.walls_ms * busy_share, part_of_step=busy_share
    )


def _accidents(series: RankSeries) -> Array:
    """Pauses that came once or twice, as a hang or a wait for a child: no step's habit."""
    step_ns = series.rows["wall_ns"] / series.n_steps
    if step_ns.max() <= PAUSE * step_ns.min():
        return np.zeros(len(step_ns), bool)
    long = series.after_set_up & (step_ns > PAUSE * np.median(step_ns))
    return long if long.sum() < HABIT else np.zeros_like(long)


def _users_own_ns(rows: Array) -> Array:
    """Time between the phases without the agent's work and garbage collection (HO03)."""
    return np.maximum(rows["other_ns"] - rows["agent_ns"] - rows["gc_ns"], 0)


def _queued_ns(rows: Array, waiting: float) -> Array:
    """Waiting for a core between the phases, which IN04 reports: as large a part of it as of the
    CPU time used there.

    A thread that sleeps or reads is not queued, so what uses no CPU time is charged in full.
    """
    return waiting * rows["wall_ns"] * _part_of_cpu(rows, waiting)


def _at_most_by_cpu_ns(rows: Array, waiting: float) -> Array:
    """Time between the phases, and no more of the step than of its CPU time: whoever waits for a
    core waits in proportion to what it uses.
    """
    return np.minimum(_users_own_ns(rows), _part_of_cpu(rows, waiting) * rows["wall_ns"])


def _part_of_cpu(rows: Array, waiting: float) -> Array:
    """Part of the CPU time used between the phases, or of the time where that is not known."""
    elsewhere_ns = (rows["optimizer_ns"] + rows["data_ns"]) * (1 - waiting)
    used = np.maximum(rows["cpu_ns"] - np.maximum(rows["compute_cpu_ns"], 0) - elsewhere_ns, 0)
    return np.where(
        rows["cpu_ns"] > 0,
        used / np.maximum(rows["cpu_ns"], 1),
        rows["other_ns"] / np.maximum(rows["wall_ns"], 1),
    )
