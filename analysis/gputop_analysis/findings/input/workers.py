"""Why batches of workers come late: too few, one slow, or too much to unpack."""

from __future__ import annotations

import numpy as np

from gputop_agent.contracts import LoaderInUse
from gputop_analysis.findings.advice import NOWHERE, Option
from gputop_analysis.findings.dialect import loader_change, loader_place, loader_site, takes
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.input.data_wait import (
    WAITING,
    data_wait,
    per_batch_ms,
    severity_of,
    wait_source,
)
from gputop_analysis.findings.input.faster_batches import (
    faster_batches,
    in_workers,
    where_to_mend,
)
from gputop_analysis.findings.input.late_batches import QUEUE_READ_MS, STARVED, WAITING_SOME
from gputop_analysis.findings.input.loader_looks import (
    ENOUGH_LOOKS,
    SOMETIMES_EMPTY,
    Looks,
    looks,
    surely,
    workers,
)
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import Share, everybody, run_queue
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

BUSY = 0.8
"""Of a core: a worker above it is never idle, so it never has its batches ready in advance."""
_COMPUTING = (
    "lower end of the 95 % Wilson interval of looks at a waiting fetch whose worker "
    "computes (state R)"
)
HANDOVER_MS = 5.0
"""A tensor's way over two sockets to a busy worker, at most: larger tensors would not help."""
IDLE = 0.60
"""Below it a worker waits for something half of the time."""
MOSTLY = 0.5
MANY_TENSORS = 8
"""In a batch: of fewer, the handing over is soon done where there are cores for it."""


def _waiting(view: RunView, least_share: float) -> tuple[Share, Looks, LoaderInUse] | None:
    """The typical rank's data wait, looks at its loader and its description, with workers."""
    wait = data_wait(view)
    if (
        wait is None
        or not wait.surely_above(least_share)
        or per_batch_ms(view, wait) < QUEUE_READ_MS
    ):
        return None
    loader_looks, loader = looks(view).get(wait.rank), view.hello(wait.rank).get("dataloader") or {}
    if loader_looks is None or loader_looks.looks < ENOUGH_LOOKS or not loader.get("num_workers"):
        return None
    return wait, loader_looks, loader


@finding(
    id="IN03",
    name="worker-limited",
    family="input",
    cause="input",
    trigger=f"data wait above {percent(WAITING)} of the step; the loader's workers use or want "
    f"over {percent(BUSY)} of a core each, or the one that is waited for computes in over half of "
    "the looks; no batch lies ready in over a quarter of the looks",
    fix="more workers while there are cores, else a cheaper transform, or decoding on the GPU",
    explains=("IN01",),
    no_use="more workers: where each core has one, or other programs use the cores",
    reads="steps.data_ns, process.cpu_ns_total of the workers, looks at the batches that lie ready",
    silent="fewer than 20 steady steps; workers not seen; too few looks",
    traps="one slow worker (IN06), slow storage (IN07)",
    seen_on=CPU,
)
def worker_limited(view: RunView, spec: Spec) -> Finding | None:
    """The workers compute all the time and are still too slow."""
    waiting, crews = _waiting(view, WAITING), workers(view)
    if waiting is None or waiting[0].rank not in crews:
        return None
    wait, loader_looks, loader = waiting
    crew, run = crews[wait.rank], Facts(view, wait.rank)
    if loader_looks.waiting >= ENOUGH_LOOKS:
        computing = surely(loader_looks.states["R"], loader_looks.waiting)
    else:
        computing = 0.0
    wanted = crew.cpu + crew.queued if crew.cpu > MOSTLY else crew.cpu
    busy = wanted > BUSY or (computing > MOSTLY and crew.cpu > MOSTLY)
    if loader_looks.empty <= SOMETIMES_EMPTY * loader_looks.looks or not busy:
        return None
    return spec.make(
        severity=severity_of(wait),
        title=f"too few or too slow workers ({loader['num_workers']}): {wait.ms.value:.1f} ms "
        "data wait a step",
        evidence=f"no batch lay ready in {loader_looks.empty} of {loader_looks.looks} looks at "
        f"the loader, and its workers use {crew.cpu * 100:.0f} % of a core each; the one waited "
        f"for was computing in {loader_looks.states['R']} of {loader_looks.waiting} looks; "
        f"{wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step wait for data, {wait.percent}"
        f"{in_workers(run)}",
        fix=faster_batches(run, wait),
        rank=everybody(view),
        site=where_to_mend(run),
        recoverable_ms_per_step=wait.ms.value,
        interval_ms_per_step=(wait.ms.low, wait.ms.high),
        proof=Proof(
            *(
                (
                    "CPU time of the loader's workers, with their waits for a core",
                    100 * wanted,
                    100 * BUSY,
                    "% of a core",
                )
                if wanted > BUSY
                else (_COMPUTING, 100 * computing, 100 * MOSTLY, "%")
            ),
            f"recoverable = sum(data wait) / steps = {wait.mean_ms:.3f} ms per step",
            (
                Input(
                    "data wait per step",
                    wait.mean_ms,
                    "ms",
                    f"{wait_source(wait)}, rank {wait.rank}, {wait.steps:,} steps",
                ),
                Input(
                    "share of data wait, lower end",
                    100 * wait.share.low,
                    "%",
                    "95 % block bootstrap, above 10 %",
                ),
                Input(
                    "CPU of a worker",
                    100 * crew.cpu,
                    "% of a core",
                    f"process.cpu_ns_total, {crew.samples} samples",
                ),
                Input(
                    "looks at a waiting fetch", loader_looks.waiting, "", "loader events, states"
                ),
                Input(
                    "of these its worker computes",
                    loader_looks.states["R"],
                    "",
                    "loader events, states R",
                ),
                Input(
                    "looks without a ready batch",
                    loader_looks.empty,
                    "",
                    f"loader events, {loader_looks.looks} looks, above a quarter",
                ),
            ),
        ),
    )


@finding(
    id="IN06",
    name="head-of-line blocking",
    family="input",
    cause="input",
    trigger=f"data wait above {percent(WAITING)} of the step; in over half of the waits for a "
    "batch the batches after it are there",
    fix="in_order=False (torch 2.6 and later), or samples of equal cost",
    explains=("IN01", "IN03"),
    no_use=(
        "in_order=False: before torch 2.6, without workers, or where the order of samples matters"
    ),
    reads="looks at the loader while the training waits: whether later batches are there already",
    silent="fewer than 20 steady steps; fewer than two workers; too few looks",
    traps="a checkpoint or an evaluation every few steps",
    seen_on=CPU,
)
def head_of_line_blocking(view: RunView, spec: Spec) -> Finding | None:
    """The next batch in turn is late, those behind it are ready and have to wait for it."""
    waiting = _waiting(view, WAITING)
    if waiting is None:
        return None
    wait, loader_looks, loader = waiting
    if (
        loader_looks.fetching < ENOUGH_LOOKS
        or surely(loader_looks.behind, loader_looks.fetching) <= MOSTLY
    ):
        return None
    run, part = Facts(view, wait.rank), loader_looks.behind / loader_looks.fetching
    if loader_looks.waited_for:
        (worker, times) = loader_looks.waited_for.most_common(1)[0]
    else:
        (worker, times) = (-1, 0)
    is_single = times > 0.8 * loader_looks.behind
    if is_single:
        culprit = f"worker {worker} of {loader['num_workers']}"
        late = f", {times} times the late one was of worker {worker}"
        advice = "look at what that worker reads"
    else:
        culprit, late = "one worker or another", ""
        advice = "split samples that cost much more than others"
    return spec.make(
        severity=severity_of(wait),
        title=f"batches that are ready wait for {culprit}: {part * wait.ms.value:.1f} ms a step",
        evidence=f"in {loader_looks.behind} of {loader_looks.fetching} looks at a waiting fetch "
        f"later batches had arrived{late}"
        f"; {wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step wait for data, {wait.percent}",
        fix=(
            Option(
                f"{loader_change(run, in_order=False)} (batches then come in another order each "
                "run)",
                needs=() if takes(run, "in_order") else (NOWHERE,),
            ),
            advice,
        ),
        rank=everybody(view),
        site=loader_site(run),
        confidence=0.9,
        recoverable_ms_per_step=part * wait.ms.value,
        interval_ms_per_step=(
            surely(loader_looks.behind, loader_looks.fetching) * wait.ms.low,
            wait.ms.high,
        ),
        proof=loader_looks.proof(
            "at a waiting fetch that saw later batches",
            loader_looks.behind,
            loader_looks.fetching,
            MOSTLY,
            f"recoverable = {loader_looks.behind} / {loader_looks.fetching} x data wait = "
            f"{part * wait.mean_ms:.3f} ms per step",
            Input(
                "data wait per step",
                wait.mean_ms,
                "ms",
                f"{wait_source(wait)}, rank {wait.rank}, {wait.steps:,} steps",
            ),
        ),
    )


@finding(
    id="IN10",
    name="unpacking in the main process",
    family="input",
    cause="input",
    trigger=f"data wait above {percent(WAITING_SOME)} of the step and {QUEUE_READ_MS:.0f} ms a "
    "batch; over half of it rebuilds batches that have arrived, while the workers are idle (under "
    f"{percent(IDLE)} of a core)",
    fix="fewer and larger tensors in a batch, no Python objects; collate in the worker",
    explains=("IN01", "IN03"),
    no_use=(
        "where batches are few large tensors already, or the worker that hands "
        "them over waits for a core"
    ),
    reads="steps.data_cpu_ns, stack samples of the data phase, process.cpu_ns_total of the workers",
    silent=(
        "fewer than 20 steady steps; no workers; no stack samples; fewer than 8 tensors a batch "
        "while the training waits for cores"
    ),
    traps="num_workers=0, which is IN02",
    seen_on=CPU,
)
def unpacking_in_main(view: RunView, spec: Spec) -> Finding | None:
    """Batches consist of so many pieces that taking them over costs more than waiting for them."""
    waiting, crews = _waiting(view, WAITING_SOME), workers(view)
    if waiting is None or waiting[0].rank not in crews:
        return None
    wait, loader_looks, loader = waiting
    crew, run = crews[wait.rank], Facts(view, wait.rank)
    enough = (
        loader_looks.fetching >= ENOUGH_LOOKS
        and surely(loader_looks.unpacking, loader_looks.fetching) > MOSTLY
    )
    if not enough or crew.cpu >= IDLE:
        return None
    queue, tensors = run_queue(view, wait.rank), _tensors(view, wait.rank)
    # the worker that hands the batch over waits for a core (IN04)
    starved = queue and queue.share.low > STARVED and _own_part(view, wait.rank) < OWN_PART
    if tensors < MANY_TENSORS and (starved or per_batch_ms(view, wait) < HANDOVER_MS * tensors):
        return None
    part = loader_looks.unpacking / loader_looks.fetching
    won = max(0.0, part * wait.ms.value)
    return spec.make(
        severity=severity_of(wait),
        title=f"rebuilding batches from the workers takes {won:.1f} ms a step in the training "
        "process",
        evidence=f"{loader_looks.unpacking} of {loader_looks.fetching} looks at a fetch saw it "
        f"unpickle or map a batch that had arrived; the workers use {crew.cpu * 100:.0f} % of a "
        f"core each meanwhile; {wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step are data "
        f"wait, {wait.percent}",
        fix=f"make each batch of the loader{loader_place(run)} a few large tensors (stack or "
        f"concatenate them in collate_fn, now {loader.get('collate_fn') or 'not known'}) instead "
        "of many small ones or Python objects",
        rank=everybody(view),
        site=loader_site(run),
        confidence=0.9,
        recoverable_ms_per_step=won,
        interval_ms_per_step=(
            surely(loader_looks.unpacking, loader_looks.fetching) * wait.ms.low,
            wait.ms.high,
        ),
        proof=loader_looks.proof(
            "at a fetch that saw it unpack",
            loader_looks.unpacking,
            loader_looks.fetching,
            MOSTLY,
            f"recoverable = {loader_looks.unpacking} / {loader_looks.fetching} x data wait = "
            f"{won:.3f} ms per step",
            Input(
                "data wait per step",
                wait.mean_ms,
                "ms",
                f"{wait_source(wait)}, rank {wait.rank}, {wait.steps:,} steps",
            ),
            Input(
                "CPU of a worker",
                100 * crew.cpu,
                "% of a core",
                f"process.cpu_ns_total, {crew.samples} samples",
            ),
        ),
    )


OWN_PART = 0.2
"""Of the data wait that the training thread computes by itself, as it does where it rebuilds Python
objects: it was 0.36 and 0.54 there, 0.01 to 0.03 where it waited for a worker on a busy machine.
"""


def _own_part(view: RunView, rank: int) -> float:
    """Part of the data wait in which the training thread used a core; 0 where it is not known."""
    series = view.per_rank[rank]
    rows = series.rows[series.steady]
    rows = rows[(rows["cpu_ns"] > 0) & (rows["compute_cpu_ns"] >= 0)]
    waited_ns = float(rows["data_ns"].sum())
    elsewhere_ns = rows["compute_cpu_ns"] + rows["other_ns"] + rows["optimizer_ns"]
    used_ns = float(np.maximum(rows["cpu_ns"] - elsewhere_ns, 0).sum())
    return used_ns / waited_ns if waited_ns > 0 else 0.0


def _tensors(view: RunView, rank: int) -> int:
    """Of a batch; many where it is not known."""
    return len((view.hello(rank).get("batch") or {}).get("shapes") or ()) or MANY_TENSORS
