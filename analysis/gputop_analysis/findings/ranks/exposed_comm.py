"""Communication that the training waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gputop_analysis.culprit import MIN_EFFECT_MS
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.option import Option
from gputop_analysis.findings.pictures import RANK_WAITS, phases
from gputop_analysis.findings.ranks.called import Called, called_a_step
from gputop_analysis.findings.ranks.comm_options import (
    FEW_MESSAGES,
    buffers_explain,
    bytes_a_sum,
    called_options,
    comm_options,
    explain_the_time,
    sums_gradients,
    volume_ms,
)
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody, run_queue
from gputop_analysis.findings.site import Site
from gputop_analysis.findings.sites import top_site
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.stages import passes_messages, pipeline_ranks
from gputop_analysis.stats import Interval, block_bootstrap
from gputop_analysis.text import counted, percent
from gputop_analysis.view import Array, RunView
from gputop_analysis.waits import ARRIVALS, COLLECTIVES, DDP_TIMERS, in_collectives, waits

Event = dict[str, Any]

EXPOSED, MUCH_EXPOSED = 0.10, 0.30
WRAPPERS = ("ddp", "fsdp", "deepspeed", "mesh")
"""Of a model, which call collectives themselves."""
MOSTLY_EXCHANGED = 0.5
"""Part of the bytes in all_to_all, from which ranks hold parts of one model, which need each
other's values.
"""
MOST_QUEUED = 0.6
"""Part of a step in the wait for a core that is taken off a time which the calls explain."""


class _LeastWait(NamedTuple):
    """What the rank that waits least for communication waits, step by step."""

    least_ms: Array
    wall_ms: float
    """Mean time of a step."""
    ranks: int
    source: str
    by_script: bool
    """Whether it waits in calls of the script's own, and not for gradients."""
    site: Site | None
    """Of those calls."""


def _least_wait(view: RunView) -> _LeastWait | None:
    waited, common = waits(view), view.common
    if waited is not None and common is not None and waited.source == ARRIVALS:
        waited = in_collectives(common)  # late arrivals are waiting for a rank, not for the network
    if waited is None or common is None:
        return None
    pipelined = pipeline_ranks(view)
    if waited.source == COLLECTIVES and pipelined:
        return None  # stages wait for each other's work, not for the network: see CR13
    wall_ms = float(common.per_step_ms("wall_ns").mean())
    least_ms, source, site = waited.ms.min(axis=1), waited.source, None
    if waited.beside_ms is not None:
        least_ms, source = (waited.ms - waited.beside_ms).min(axis=1), DDP_TIMERS
    called_ms = common.per_step_ms("comm_ns").min(axis=1)
    if source == COLLECTIVES:
        by_script = not _is_wrappers(view)
    else:
        by_script = called_ms.mean() > least_ms.mean()
    if by_script and not pipelined:
        least_ms, source, site = called_ms, COLLECTIVES, top_site(view, "comm")
    return _LeastWait(least_ms, wall_ms, len(waited.ranks), source, by_script, site)


def _is_wrappers(view: RunView) -> bool:
    """Whether the model's wrapper calls the collectives: in a forward or backward, where it shards
    the model.
    """
    parallel = Facts(view, view.ranks[0]).parallel
    if not any(parallel.get(name) for name in WRAPPERS):
        return False
    if parallel.get("ddp") or parallel.get("deepspeed"):
        return True
    lines = [top_site(view, phase) for phase in ("comm", "forward", "backward")]
    called, *in_model = [line.site if line else None for line in lines]
    return called is None or called in in_model


_OF_MESSAGES = (
    "of stages that wait for each other's work: more micro-batches, or one forward and one "
    "backward in turns (1F1B), as torch.distributed.pipelining does",
    "where a line sends several tensors in a row: one message",
)


@finding(
    id="CR06",
    name="exposed communication",
    family="ranks",
    cause="comm",
    trigger=f"the smallest communication wait of any rank takes over {percent(EXPOSED)} of the "
    f"step (lower end of the 95 % interval) and 2 ms; high above {percent(MUCH_EXPOSED)}",
    fix="where the bytes take the time: overlap it (bucket_cap_mb, FSDP prefetch), send less "
    "(bf16 hook); where they do not: fewer ranks and threads than cores, fewer messages; "
    "in both: send less often (accumulation)",
    no_use=(
        "less volume, larger or earlier buckets: where the bytes explain less than a quarter of "
        "the time; rarer sums: where the batch may not grow"
    ),
    reads="the smallest communication wait over the ranks, less what overlaps",
    silent=(
        "one rank; a straggler, whose cost is counted there; a pipeline, where "
        "waiting is the bubble (CR13); only an info where ranks hold parts of one model and "
        f"exchange values in at most {FEW_MESSAGES} collectives a step, or sum gradients by hand "
        f"on CPUs in as many and for at most {percent(MUCH_EXPOSED)} of the step, or send to one "
        "another by the script's own calls, as stages of a pipeline made by hand do, and wait no "
        "more than its largest bubble (all but one of n ranks: 1 - 1/n)"
    ),
    traps="waiting for a slow rank: the minimum over ranks leaves that out",
    seen_on=CPU,
    pictures=(
        RANK_WAITS,
        phases("comm", "backward"),
    ),
)
def exposed_communication(view: RunView, spec: Spec) -> Finding | None:
    """Even the rank that everybody waits for waits for the network."""
    wait = _least_wait(view)
    if wait is None:
        return None
    wall_ms, source, site = wait.wall_ms, wait.source, wait.site
    least_ms = wait.least_ms
    if not (least_ms.mean() > EXPOSED * wall_ms and least_ms.mean() > MIN_EFFECT_MS):
        return None
    queue, ms = _core_wait(view), block_bootstrap(least_ms, np.ones(len(least_ms)))
    run = Facts(view, view.ranks[0])
    called = called_a_step(view, view.ranks[0]) if wait.by_script else None
    threshold = _threshold(run, wait, called, queue, ms.value)
    if not (ms.low > threshold * wall_ms and ms.low > MIN_EFFECT_MS):
        return None
    parallel, sent, explained = run.parallel, bytes_a_sum(run) or 0, volume_ms(run)
    steps = f"{len(least_ms):,} steps or groups of steps"
    by_messages = wait.by_script and passes_messages(view)
    return spec.make(
        severity=_severity(run, wait, ms, called, by_messages=by_messages),
        title=f"communication takes {100 * ms.value / wall_ms:.0f} % of each step, {ms.value:.1f} "
        "ms, on every rank",
        evidence=f"the rank that waits least waits {ms.value:.1f} ms of {wall_ms:.1f} ms a step "
        f"(95 % interval {ms.low:.1f} to {ms.high:.1f} ms, {source}, {steps}, {wait.ranks} "
        f"ranks, backend {parallel.get('backend')})"
        + ("" if wait.by_script else _gradients(sent, explained))
        + _messages(called)
        + (f"; {site.words}" if site else ""),
        fix=_options(run, wait, called, ms.value, by_messages=by_messages),
        rank=everybody(view),
        site=site.site if site else None,
        confidence=0.9,
        recoverable_ms_per_step=None if by_messages else ms.value,
        interval_ms_per_step=None if by_messages else (ms.low, ms.high),
        proof=Proof(
            statistic="lower end of the 95 % interval of the smallest wait over the ranks / step "
            "time",
            value=100 * ms.low / wall_ms,
            threshold=100 * threshold,
            unit="%",
            formula="recoverable = mean over steps of min over ranks of exposed communication "
            "(backward_comm - overlap), all of which could run beside backward; the minimum "
            "leaves out waiting for a slow rank; the threshold is 10 % and what the ranks wait "
            "for a core, which makes collectives slow that need not be; where the script's own "
            "calls explain the time, 10 % of what is left without that wait",
            inputs=(
                Input("exposed communication", ms.value, "ms per step", f"{source}, {steps}"),
                Input("step time", wall_ms, "ms", "steps.wall_ns, all ranks, common steady steps"),
                Input(
                    "waiting for a core",
                    100 * queue,
                    "%",
                    "process.run_wait_ns_total past the warm-up, the rank with most",
                ),
                Input("gradients", sent / 1e6, "MB per all-reduce", "ddp event, bucket_bytes"),
            ),
        ),
    )


def _threshold(
    run: Facts, wait: _LeastWait, called: Called | None, queue: float, exposed_ms: float
) -> float:
    """The part of a step from which on the wait is told: more of it where ranks wait for cores, but
    for what the number or the bytes of messages explain.
    """
    by_calls = called is not None and explain_the_time(run, called, exposed_ms)
    if by_calls or buffers_explain(run, wait.site, exposed_ms):
        return EXPOSED / (1 - min(queue, MOST_QUEUED))
    return EXPOSED + queue


def _options(
    run: Facts, wait: _LeastWait, called: Called | None, exposed_ms: float, *, by_messages: bool
) -> Sequence[Option | str]:
    if by_messages:
        return _OF_MESSAGES
    if wait.by_script:
        return called_options(run, wait.site, called, exposed_ms)
    return comm_options(run, exposed_ms)


def _severity(
    run: Facts, wait: _LeastWait, ms: Interval, called: Called | None, *, by_messages: bool
) -> Severity:
    largest_bubble = 1 - 1 / wait.ranks  # of a pipeline, with one micro-batch a step
    if by_messages and ms.low <= largest_bubble * wait.wall_ms:
        return "info"
    if called and called.exchanged > MOSTLY_EXCHANGED and called.messages <= FEW_MESSAGES:
        return "info"
    much = ms.low > MUCH_EXPOSED * wait.wall_ms
    if wait.by_script and sums_gradients(run) and _is_once_on_cpus(run, called) and not much:
        return "info"
    return "high" if much else "medium"


def _is_once_on_cpus(run: Facts, called: Called | None) -> bool:
    """Whether the script sends a few messages an update from CPU to CPU, which take cores that the
    training needs, whenever they are sent.
    """
    few = called is not None and called.messages <= FEW_MESSAGES
    return few and "gloo" in str(run.parallel.get("backend")) and not run.on_gpu


def _messages(called: Called | None) -> str:
    if called is None:
        return ""
    messages = counted(round(called.messages), "collective")
    text = f"; {messages} a step with {called.bytes_sent / 1e6:.3g} MB"
    if called.exchanged > 0:
        text += f", {100 * called.exchanged:.0f} % of it in all_to_all"
    return text


def _gradients(sent: int, explained_ms: float | None) -> str:
    size = f"; {_size(sent)} of gradients at a time" if sent else ""
    if explained_ms is None:
        return size
    return f"{size}, which take {explained_ms:.2g} ms at most on a slow link"


def _core_wait(view: RunView) -> float:
    """Share of the time that the ranks wait for a core, at most; 0 where it is not sampled."""
    return max(
        (queue.value for rank in view.ranks if (queue := run_queue(view, rank))), default=0.0
    )


def _size(sent: int) -> str:
    if sent >= 1e6:
        return f"{sent / 1e6:,.0f} MB"
    return f"{sent / 1e3:,.0f} kB"
