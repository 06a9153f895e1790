"""Does the training wait for its batches, and why?"""

from __future__ import annotations

from gputop_analysis.findings.cores import (
    HANDOVER_MS,
    computing_threads,
    own_cores,
    won_by_workers,
)
from gputop_analysis.findings.dialect import loader_place, loader_site
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.input.data_wait import (
    MOST_OF_IT,
    WAITING,
    data_wait,
    per_batch_ms,
    severity_of,
    wait_source,
)
from gputop_analysis.findings.input.faster_batches import (
    faster_batches,
    in_workers,
    making,
    where_to_mend,
    whole_batches,
    workers_needed,
)
from gputop_analysis.findings.input.loader_looks import ENOUGH_LOOKS, looks, surely, workers
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import (
    Queue,
    Share,
    everybody,
    on_device,
    run_queue,
    without_queueing,
)
from gputop_analysis.findings.site import named
from gputop_analysis.findings.sites import trainers_call
from gputop_analysis.model import Finding, Input, Severity
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

QUEUE_READ_MS = 3.0
"""Taking a ready batch from a worker's queue costs the training 1 to 3 ms (unpickling, shared
memory): no more workers change that.
"""
TAKEN_OVER_MS = 9.0
"""The same of a large batch, where looks at the loader say that it lay ready."""
WAITING_SOME = 0.05
"""The same where the cause is known: batches made or unpacked by the training process."""
STARVED = 0.10
"""Where the training waits so much for a core, workers starve too: more make it worse (IN04)."""


@finding(
    id="IN01",
    name="input-bound",
    family="input",
    cause="input",
    trigger=f"data wait above {percent(WAITING)} of the step (lower end of the 95 % interval); "
    f"high above 25 %, info below {QUEUE_READ_MS:.0f} ms",
    fix="more DataLoader workers with prefetching, a cheaper transform, or data that is "
    "prepared beforehand",
    no_use=(
        "more workers: where the cores are taken already, they share what there is; below "
        "3 ms a batch"
    ),
    reads="steps.data_ns, on a GPU device.data_ms; hello.dataloader",
    silent=(
        "fewer than 20 steady steps; less than 1 ms a batch; workers that starve "
        "for cores (IN04 speaks then)"
    ),
    traps="a wait that overlaps the GPU's work: judged on the device's clock where there is one",
    seen_on=CPU,
    explained_by=STRAGGLERS,
)
def input_bound(view: RunView, spec: Spec) -> Finding | None:
    """Steps wait for data."""
    wait = data_wait(view)
    if wait is None or not wait.surely_above(WAITING) or per_batch_ms(view, wait) < HANDOVER_MS:
        return None
    run = Facts(view, wait.rank)
    count = run.loader.get("num_workers")
    queue = run_queue(view, wait.rank)
    if count and queue and queue.share.low > STARVED and not _late_in_any_case(view, wait, queue):
        return None
    if count:
        handed_over_ms = wait.mean_ms
    else:
        handed_over_ms = without_queueing(view, wait.rank, per_batch_ms(view, wait))
    severity, loader = severity_of(wait), ""
    if count is not None:
        loader = f"; the loader{loader_place(run)} has num_workers={count}"
        rank_looks = looks(view).get(wait.rank)
        ready = rank_looks if rank_looks is not None and rank_looks.ready_in_advance else None
        if ready is not None:
            loader += (
                f"; a batch lay ready in {ready.looks - ready.empty} of {ready.looks} looks at it"
            )
        if handed_over_ms < (QUEUE_READ_MS if ready is None else TAKEN_OVER_MS):
            severity = "info"
    return spec.make(
        severity=severity,
        title=f"data wait takes {wait.share.value * 100:.0f} % of each step, {wait.ms.value:.1f} "
        "ms",
        evidence=f"{wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step wait for the next batch: "
        f"{wait.percent}, {wait.clock} clock, {wait.steps:,} steady steps{loader}"
        f"{in_workers(run)}",
        fix=faster_batches(run, wait),
        rank=everybody(view),
        site=where_to_mend(run),
        confidence=0.6 if on_device(view, wait.rank) and wait.clock == "host" else 0.95,
        recoverable_ms_per_step=wait.ms.value,
        interval_ms_per_step=(wait.ms.low, wait.ms.high),
        proof=wait.proof("data wait", WAITING, wait_source(wait)),
    )


def _late_in_any_case(view: RunView, wait: Share, queue: Queue) -> bool:
    """Whether batches would be late with cores for all too: what is left of the wait without the
    workers' queueing.

    Less of it is asked for where looks at the loader say that no batch is ready at most fetches.
    """
    loader_looks, crew = looks(view).get(wait.rank), workers(view).get(wait.rank)
    late_share = wait.share.low * (1 - (crew.queued if crew else queue.value))
    if loader_looks is None or loader_looks.looks < ENOUGH_LOOKS:
        return late_share > MOST_OF_IT
    waiting = loader_looks.fetching - loader_looks.unpacking
    if waiting < loader_looks.unpacking:
        return False  # batches are there: the training itself wants a core to unpack them
    empty = (
        surely(loader_looks.empty, loader_looks.looks) > 0.5
        and surely(waiting, loader_looks.looks) > 0.5
    )
    return late_share > (0.10 if empty else MOST_OF_IT)


@finding(
    id="IN02",
    name="single-process loader",
    family="input",
    cause="input",
    trigger=f"num_workers=0 and data wait above {percent(WAITING_SOME)} of the step (lower end "
    f"of the 95 % interval); info below {QUEUE_READ_MS:.0f} ms a batch, which a worker takes to "
    "hand one over, unless it is above 2 ms and 40 % of the step",
    fix="num_workers above 0: batches are then made while the model trains",
    explains=("IN01",),
    no_use=(
        "workers: where no core is left for one, or a batch takes less than 3 ms; a batch "
        "sampler: with an IterableDataset, or where a trainer builds the loader"
    ),
    reads="steps.data_ns, hello.dataloader.num_workers and its site",
    silent=(
        "fewer than 20 steady steps; the loader is not torch's; less than 1 ms a batch, waiting "
        "for a core not counted"
    ),
    traps="data already in memory: below 3 ms a batch a worker wins nothing, and it is an info",
    seen_on=CPU,
    explained_by=STRAGGLERS,
)
def single_process_loader(view: RunView, spec: Spec) -> Finding | None:
    """Batches are made by the training process itself, between steps."""
    wait = data_wait(view)
    if wait is None or not wait.surely_above(WAITING_SOME):
        return None
    making_ms = without_queueing(view, wait.rank, per_batch_ms(view, wait))
    if making_ms < HANDOVER_MS:
        return None
    run = Facts(view, wait.rank)
    if run.loader.get("num_workers") != 0:
        return None
    wanted = workers_needed(view, wait)
    won = won_by_workers(view, wait, 0, wanted)
    made_at = making(run)
    too_short = making_ms < QUEUE_READ_MS
    mended_at = loader_site(run) if too_short else where_to_mend(run)
    return spec.make(
        severity=_severity_alone(wait, making_ms),
        title=f"{wait.share.value * 100:.0f} % of each step, {wait.ms.value:.1f} ms, makes the "
        "next batch: num_workers=0",
        evidence=f"the loader{loader_place(run)} has num_workers=0, so the training makes each "
        f"batch itself: {wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step, {wait.percent}, "
        f"{wait.clock} clock, {wait.steps:,} steady steps"
        + (f"; {made_at.words}" if made_at is not None and made_at.site else ""),
        fix=whole_batches(run) if too_short else faster_batches(run, wait),
        rank=everybody(view),
        site=mended_at or named(made_at) or trainers_call(view, wait.rank),
        recoverable_ms_per_step=wait.mean_ms,
        interval_ms_per_step=(wait.ms.low, wait.ms.high),
        proof=wait.proof(
            "data wait",
            WAITING_SOME,
            wait_source(wait),
            f"recoverable = step - max(rest of the step, data / {wanted} workers, CPU time of a "
            f"step / cores) - {HANDOVER_MS:.0f} ms for the handing over = {won:.3f} ms per step "
            "by workers",
            Input("rest of the step", wait.wall_ms - wait.mean_ms, "ms", "step time - data wait"),
            Input("cores", view.cores(wait.rank), "", "host.json cpu_count; 0: not known"),
            Input(
                "cores for this rank",
                _cores_said(view, wait.rank, wanted),
                "",
                "shared with all that wants them",
            ),
        ),
    )


LARGE_PART, LARGE_MS = 0.40, 2.0
"""Of a step, and a batch: making them is worth a look also where a worker would not win it back."""


def _severity_alone(wait: Share, making_ms: float) -> Severity:
    if making_ms >= QUEUE_READ_MS:
        return severity_of(wait)
    if wait.share.low > LARGE_PART and making_ms >= LARGE_MS:
        return "medium"
    return "info"


def _cores_said(view: RunView, rank: int, worker_count: int) -> float | str:
    cores = own_cores(view, rank, (computing_threads(view, rank) or 1) + worker_count)
    return "not known" if cores is None else cores
