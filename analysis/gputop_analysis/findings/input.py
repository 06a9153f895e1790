"""Input pipeline: does the training wait for its batches, and why?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gputop_analysis.findings.input_looks import ENOUGH_LOOKS, epoch_starts, looks, surely, workers
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import (
    Queue,
    Share,
    crowded,
    device_share,
    everybody,
    on_device,
    run_queue,
    share_over,
    some_ranks,
    typical,
    without_queueing,
)
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.text import counted
from gputop_analysis.view import RunView, once_per_view

WORKER_HANDOVER_MS = 1.0
"""A worker process hands a batch over in 0.2 to 1 ms: data time below that is not won by more workers."""


QUEUE_READ_MS = 3.0
"""Taking a ready batch from a worker's queue costs the training 1 to 3 ms (unpickling, shared memory): no more workers
change that."""

STARVED = 0.10
"""Where even the training waits so much for a core, workers starve too: more of them would make it worse (IN04)."""

MOST_OF_IT = 0.25
"""Of the step: so much waiting for data is more than workers that starve can make of it."""


@once_per_view
def data_wait(view: RunView) -> Share | None:
    """Waiting for batches on the typical rank; on a device's clock it is the gap in which the device idles.

    Without the steps in which an epoch begins: workers that start have their own finding (IN05).
    """
    return typical(device_share(view, rank, "data") or _fetch_wait(view, rank) for rank in some_ranks(view))


def _fetch_wait(view: RunView, rank: int) -> Share | None:
    series, starts = view.per_rank[rank], epoch_starts(view).get(rank)
    mask = series.steady
    if starts is not None and (view.hello(rank).get("dataloader") or {}).get("num_workers"):
        upto, before = (np.searchsorted(starts[0], series.steps - n, "right") for n in (0, series.n_steps))
        mask = mask & (upto == before)
    return share_over(series, mask, lambda rows: rows["data_ns"])


def wait_source(wait: Share) -> str:
    """The column that a data wait was read from."""
    return "device.data_ms" if wait.clock == "device" else "steps.data_ns"


@finding(
    id="IN01",
    name="input-bound",
    family="input",
    cause="input",
    trigger="data wait above 10 % of the step (lower end of the 95 % interval); high above 25 %, info below 3 ms",
    fix="more DataLoader workers with prefetching, a cheaper transform, or data that is prepared beforehand",
)
def input_bound(view: RunView, spec: Spec) -> Finding | None:
    """Steps wait for data."""
    wait = data_wait(view)
    if wait is None or not wait.surely_above(0.10) or per_batch_ms(view, wait) < WORKER_HANDOVER_MS:
        return None
    loader = view.hello(wait.rank).get("dataloader") or {}
    count = loader.get("num_workers")
    queue = run_queue(view, wait.rank)
    if count and queue and queue.share.low > STARVED and not _late_in_any_case(view, wait, queue):
        return None
    handed_over_ms = wait.mean_ms if count else without_queueing(view, wait.rank, per_batch_ms(view, wait))
    return spec.make(
        "info" if count is not None and handed_over_ms < QUEUE_READ_MS else severity_of(wait),
        f"data wait takes {wait.share.value * 100:.0f} % of each step, {wait.ms.value:.1f} ms",
        f"{wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step wait for the next batch: {wait.percent}, "
        f"{wait.clock} clock, {wait.steps:,} steady steps"
        + (f"; loader at {loader_site(loader)} has num_workers={count}" if count is not None else ""),
        more_workers(view, wait, loader),
        rank=everybody(view),
        site=loader.get("site"),
        confidence=0.6 if on_device(view, wait.rank) and wait.clock == "host" else 0.95,
        recoverable_ms_per_step=wait.ms.value,
        interval_ms_per_step=(wait.ms.low, wait.ms.high),
        proof=wait.proof("data wait", 0.10, wait_source(wait)),
    )


def _late_in_any_case(view: RunView, wait: Share, queue: Queue) -> bool:
    """Whether batches would be late with cores for all too: what is left of the wait without the workers' queueing.

    Less of it is asked for where looks at the loader say that no batch is ready at most fetches.
    """
    seen, crew = looks(view).get(wait.rank), workers(view).get(wait.rank)
    left = wait.share.low * (1 - (crew.queued if crew else queue.value))
    if seen is None or seen.looks < ENOUGH_LOOKS:
        return left > MOST_OF_IT
    waiting = seen.fetching - seen.unpacking
    if waiting < seen.unpacking:
        return False  # batches are there: the training itself wants a core to unpack them
    empty = surely(seen.empty, seen.looks) > 0.5 and surely(waiting, seen.looks) > 0.5
    return left > (0.10 if empty else MOST_OF_IT)


@finding(
    id="IN02",
    name="single-process loader",
    family="input",
    cause="input",
    trigger="num_workers=0 and data wait above 5 % of the step (lower end of the 95 % interval); info below 3 ms a "
    "batch, which a worker takes to hand one over",
    fix="num_workers above 0: batches are then made while the model trains",
    explains=("IN01",),
)
def single_process_loader(view: RunView, spec: Spec) -> Finding | None:
    """Batches are made by the training process itself, between steps."""
    wait = data_wait(view)
    if wait is None or not wait.surely_above(0.05):
        return None
    making_ms = without_queueing(view, wait.rank, per_batch_ms(view, wait))
    if making_ms < WORKER_HANDOVER_MS:
        return None
    loader = view.hello(wait.rank).get("dataloader") or {}
    if loader.get("num_workers") != 0:
        return None
    workers = workers_needed(view, wait)
    won = _won_by_workers(wait, workers)
    return spec.make(
        severity_of(wait) if making_ms >= QUEUE_READ_MS else "info",
        f"{wait.share.value * 100:.0f} % of each step, {wait.ms.value:.1f} ms, makes the next batch: num_workers=0",
        f"the loader at {loader_site(loader)} has num_workers=0, so the training makes each batch itself: "
        f"{wait.ms.value:.1f} ms of {wait.wall_ms:.1f} ms a step, {wait.percent}, {wait.clock} clock, "
        f"{wait.steps:,} steady steps",
        f"set num_workers={workers}, persistent_workers=True, prefetch_factor=4 in the DataLoader at "
        f"{loader_site(loader)}"
        if making_ms >= QUEUE_READ_MS
        else f"take whole batches from the dataset at {loader_site(loader)} (a batch sampler and batch_size=None) "
        "instead of collating samples: a worker process costs as much as it saves here",
        rank=everybody(view),
        site=loader.get("site"),
        recoverable_ms_per_step=won,
        interval_ms_per_step=(won * wait.ms.low / wait.ms.value, won * wait.ms.high / wait.ms.value),
        proof=wait.proof(
            "data wait",
            0.05,
            wait_source(wait),
            f"recoverable = data - max(0, data / {workers} workers - rest of the step) = {won:.3f} ms per step",
            Input("rest of the step", wait.wall_ms - wait.mean_ms, "ms", "step time - data wait"),
            Input("cores", view.cores(wait.rank), "", "host.json cpu_count; 0: not known"),
        ),
    )


def per_batch_ms(view: RunView, wait: Share) -> float:
    """Waiting for one batch: with gradient accumulation a step takes several."""
    series = view.per_rank[wait.rank]
    batches = float(series.rows["micro_batches"][series.steady].sum()) / max(series.n_steps[series.steady].sum(), 1)
    return wait.mean_ms / max(1.0, batches)


def workers_needed(view: RunView, wait: Share) -> int:
    """Workers that make a batch as fast as the rest of a step takes, at most the cores that a rank has."""
    rest_ms = max(wait.wall_ms - wait.ms.value, 1e-3)
    wanted = max(2, math.ceil(1.25 * wait.ms.value / rest_ms))
    cores = view.cores(wait.rank)
    ranks = sum(view.host_of(rank) == view.host_of(wait.rank) for rank in view.ranks)
    return min(wanted, max(1, cores // max(1, ranks))) if cores else min(wanted, 16)


def _won_by_workers(wait: Share, workers: int) -> float:
    rest_ms = wait.wall_ms - wait.ms.value
    return wait.ms.value - max(0.0, wait.ms.value / workers - rest_ms)


def severity_of(wait: Share) -> Severity:
    return "high" if wait.share.low > MOST_OF_IT else "medium" if wait.share.low > 0.10 else "info"


def loader_site(loader: dict[str, Any]) -> str:
    return str(loader.get("site") or "a place not seen")


def more_workers(view: RunView, wait: Share, loader: dict[str, Any]) -> str:
    workers = loader.get("num_workers")
    if not workers:
        wanted = workers_needed(view, wait)
        return f"prepare batches in the background, for instance by a DataLoader with num_workers={wanted}"
    cores = view.cores(wait.rank)
    rest_ms = max(wait.wall_ms - wait.ms.value, 1e-3)
    wanted = math.ceil(workers * wait.wall_ms / rest_ms)
    if cores and workers >= cores:
        return (
            f"all {cores} cores have a worker already (num_workers={workers}): make the transform cheaper, "
            "decode on the GPU, or store the data prepared"
        )
    return f"raise num_workers from {workers} to {min(wanted, cores) if cores else wanted}, prefetch_factor=4"


@finding(
    id="IN04",
    name="CPU oversubscription",
    family="input",
    cause="host",
    trigger="the training thread is ready but waits for a core for more than 5 % of the time; medium above 20 % where "
    "cores are scarce",
    fix="fewer workers and threads per process, or fewer processes on the machine",
)
def cpu_oversubscription(view: RunView, spec: Spec) -> Finding | None:
    """More is ready to run than there are cores."""
    waits = {rank: queue for rank in view.ranks if (queue := run_queue(view, rank))}
    if not waits:
        return None
    rank = max(waits, key=lambda one: waits[one].value)
    wait, seconds = waits[rank].share, waits[rank].seconds
    if wait.low <= 0.05:
        return None
    series = view.per_rank[rank]
    wall_ms = float(series.rows["wall_ns"][series.steady].sum() / 1e6 / max(series.n_steps[series.steady].sum(), 1))
    others = [queue.value for r, queue in waits.items() if r != rank]
    hello, cores, scarce = view.hello(rank), view.cores(rank), crowded(view, rank)
    return spec.make(
        "info" if wait.low <= 0.20 or not scarce else "high" if wait.low > 0.40 else "medium",
        f"{wait.value * 100:.0f} % of the time is spent waiting for a core",
        f"run-queue wait {wait.value * 100:.0f} % of {seconds:.0f} s (95 % interval {wait.low * 100:.0f} to "
        f"{wait.high * 100:.0f} %), {cores or 'unknown'} cores, {counted(len(view.ranks), 'rank')} on this machine, "
        f"torch threads a rank: {_threads(hello)}, num_workers={_workers(hello)}"
        + ("" if scarce else "; other cores are idle meanwhile"),
        _fewer_threads(view, hello, cores) if scarce else _pin_threads(hello),
        rank=rank if all(other < 0.5 * wait.value for other in others) else None,
        recoverable_ms_per_step=wait.value * wall_ms,
        interval_ms_per_step=(wait.low * wall_ms, wait.high * wall_ms),
        proof=_queue_proof(rank, waits[rank], wall_ms),
    )


def _queue_proof(rank: int, queue: Queue, wall_ms: float) -> Proof:
    return Proof(
        "lower end of the 95 % bootstrap interval of run-queue wait / time",
        100 * queue.share.low,
        5.0,
        "%",
        f"recoverable = {100 * queue.share.value:.1f} % x step time = {queue.share.value * wall_ms:.3f} ms per step",
        (
            Input("run-queue wait", 100 * queue.share.value, "%", f"process.run_wait_ns_total, rank {rank}"),
            Input("sampled for", queue.seconds, "s", f"process.t_ns, rank {rank}, after the warm-up"),
            Input("step time", wall_ms, "ms", f"steps.wall_ns, rank {rank}, steady steps"),
        ),
    )


def _threads(hello: dict[str, Any]) -> Any:
    return (hello.get("threads") or {}).get("torch", "unknown")


def _workers(hello: dict[str, Any]) -> Any:
    return (hello.get("dataloader") or {}).get("num_workers", "unknown")


def _fewer_threads(view: RunView, hello: dict[str, Any], cores: int) -> str:
    threads, workers, ranks = _threads(hello), _workers(hello), len(view.ranks)
    if cores and threads == 1 and ranks > cores:
        return f"start fewer ranks here: {ranks} ranks share {cores} cores"
    if cores and isinstance(threads, int) and threads * ranks > cores:
        return f"set OMP_NUM_THREADS={max(1, cores // ranks)} ({ranks} ranks of {threads} threads share {cores} cores)"
    if cores and isinstance(workers, int) and workers * ranks >= cores:
        return f"lower num_workers from {workers} to {max(1, cores // ranks - 1)} ({cores} cores for {ranks} ranks)"
    less = " or set OMP_NUM_THREADS=1: torch's threads wait for the slowest of them" if threads != 1 else ""
    return f"something else uses the cores: see `top`, stop it or move this run;{less or ' or pin it with `taskset`'}"


def _pin_threads(hello: dict[str, Any]) -> str:
    now = _threads(hello)
    if now == 1:
        return "two processes share a core while others are free: give each its own cores with `taskset` or `numactl`"
    return f"threads share a core while others are free: try OMP_NUM_THREADS=1 (now {now}) or OMP_PROC_BIND=true"
