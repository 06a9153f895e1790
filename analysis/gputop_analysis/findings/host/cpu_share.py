"""The cores that the run is given: a quota on them, too many threads for them, the wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gputop_analysis.findings.advice import MovedSetting, Option
from gputop_analysis.findings.cores import BUSY_CORES, usage
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.input.loader_looks import surely
from gputop_analysis.findings.input.oversubscription import QUEUED
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import CPU_SHARE, STEP_TIME, phases
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import Queue, queued_share, run_queue
from gputop_analysis.mend import ByArguments
from gputop_analysis.model import Finding, Input, Proof, Severity
from gputop_analysis.stats import Interval, block_bootstrap
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView

THROTTLED = 0.02


@finding(
    id="HO05",
    name="CPU quota",
    family="host",
    cause="host",
    trigger=f"the control group's CPU quota stops the run for over {percent(THROTTLED)} of the "
    "time",
    fix="a larger CPU quota, or fewer threads and workers",
    explains=("IN04", "HO14", "HO06"),
    no_use="fewer threads: where they are no more than the quota",
    reads="host.cgroup_throttled_us_total, cgroup_cpu_limit",
    silent="no CPU quota; less than 2 s of samples",
    traps="the burst at start, which is left out",
    seen_on=CPU,
    pictures=(
        CPU_SHARE,
        STEP_TIME,
    ),
)
def cpu_quota(view: RunView, spec: Spec) -> Finding | None:
    """The container's CPU limit is used up within its period: all stand still until its end."""
    throttled = [
        (throttling, rank) for rank in view.ranks[:1] if (throttling := _throttling(view, rank))
    ]
    if not throttled or throttled[0][0].share.low <= THROTTLED:
        return None
    quota, rank = throttled[0]
    series = view.per_rank[rank]
    wall_ms = float(
        series.rows["wall_ns"][series.steady].sum() / 1e6 / series.n_steps[series.steady].sum()
    )
    share, won = quota.share, _won(quota.share, run_queue(view, rank))
    if np.isfinite(quota.limit):
        limit = f"{quota.limit:.2g} cores"
    else:
        limit = "an unknown limit"
    return spec.make(
        severity=_severity(share.low),
        title=f"the CPU quota stops the run for {share.value * 100:.0f} % of the time",
        evidence=f"throttled {share.value * 100:.0f} % of {quota.seconds:.0f} s (95 % interval "
        f"{share.low * 100:.0f} to {share.high * 100:.0f} %) by the control group's quota of "
        f"{limit} on {view.host_of(rank)}",
        fix=(
            "raise the quota (docker --cpus, Kubernetes resources.limits.cpu, Slurm "
            "--cpus-per-task)",
            *_within(Facts(view, rank), quota.limit),
        ),
        rank=rank if len(view.ranks) == 1 else None,
        host=view.host_of(rank) or None,
        confidence=0.9,
        recoverable_ms_per_step=won.value * wall_ms,
        interval_ms_per_step=(won.low * wall_ms, won.high * wall_ms),
        proof=Proof(
            statistic="lower end of the 95 % bootstrap interval of throttled time / time",
            value=100 * share.low,
            threshold=100 * THROTTLED,
            unit="%",
            formula="recoverable = the smaller of the throttled share and the training thread's "
            f"wait for a core, x step time = {won.value * wall_ms:.3f} ms per step",
            inputs=(
                Input(
                    "throttled",
                    100 * share.value,
                    "%",
                    "host.cgroup_throttled_us_total, at most all of the time",
                ),
                Input("sampled for", quota.seconds, "s", "host.t_ns, after the warm-up"),
                Input("limit", quota.limit, "cores", "host.cgroup_cpu_limit"),
                Input("step time", wall_ms, "ms", f"steps.wall_ns, rank {rank}, steady steps"),
            ),
        ),
    )


def _within(run: Facts, limit: float) -> Iterator[Option]:
    """What uses more cores than the quota has, by the run's own settings."""
    if not np.isfinite(limit):
        return
    whole_cores = max(1, int(limit))
    if (run.threads or 1) > whole_cores:
        words = f"set OMP_NUM_THREADS={whole_cores} (now {run.threads})"
        yield Option(words, lever=MovedSetting("torch threads", -1), promises=False)
    workers = run.loader.get("num_workers") or 0
    if workers > whole_cores:
        words = f"lower num_workers from {workers} to {whole_cores}"
        yield Option(words, lever=MovedSetting("num_workers", -1), promises=False)


def _won(throttled: Interval, queue: Queue | None) -> Interval:
    """The training thread's own part of the throttled time. The kernel counts the cores on which
    any process of the group is stopped, gputop's too; stopped, the thread waits for a core.
    """
    if queue is None or queue.share.value >= throttled.value:
        return throttled
    return queue.share


class _Quota(NamedTuple):
    share: Interval
    seconds: float
    limit: float


def _throttling(view: RunView, rank: int) -> _Quota | None:
    """Throttled share of the time on the rank's host.

    The kernel adds up the time of every core that is stopped, so it may grow faster than the clock:
    where several threads are stopped together, each interval counts once.
    """
    host, series = view.record.hosts.get(view.host_of(rank)), view.per_rank[rank]
    if host is None or not series.steady.any():
        return None
    ends = series.steady_ends_ns
    rows = between(host.host.rows, int(ends[0]), int(ends[-1]) + 10**9)
    rows = rows[rows["cgroup_throttled_us_total"] >= 0]
    passed, stopped = np.diff(rows["t_ns"]) / 1e9, np.diff(rows["cgroup_throttled_us_total"]) / 1e6
    if len(passed) < 2 or passed.sum() < 1.0 or stopped.sum() <= 0:
        return None
    share = block_bootstrap(np.minimum(stopped, passed), passed, block=1)
    return _Quota(share, float(passed.sum()), float(rows["cgroup_cpu_limit"][-1]))


def between(rows: Array, begin_ns: int, end_ns: int) -> Array:
    """The samples from ``begin_ns`` up to ``end_ns``, wall-clock nanoseconds."""
    first, last = np.searchsorted(rows["t_ns"], [begin_ns, end_ns])
    return rows[int(first) : int(last)]


@finding(
    id="HO14",
    name="thread oversubscription",
    family="host",
    cause="host",
    trigger="torch's threads of all ranks on a host are more than its cores, and the training "
    f"thread waits for a core for over {percent(QUEUED)} of the time",
    fix="OMP_NUM_THREADS",
    explains=("IN04",),
    no_use="where the threads are one a rank already",
    reads="hello.threads times ranks against host.cpu_count, run_wait_ns_total",
    silent="cores not known; less than 1 s of samples",
    traps="torchrun, which sets OMP_NUM_THREADS=1 itself; other programs that have most of the "
    "cores in use: fewer threads then win nothing, and none is promised",
    seen_on=CPU,
    pictures=(
        CPU_SHARE,
        phases("forward", "backward"),
    ),
)
def thread_oversubscription(view: RunView, spec: Spec) -> Finding | None:
    """Each parallel region of torch waits for the slowest of more threads than there are cores."""
    for host in view.record.hosts:
        ranks = [rank for rank in view.ranks if view.host_of(rank) == host]
        threads = [(view.hello(rank).get("threads") or {}).get("torch") for rank in ranks]
        counts = [int(count) for count in threads if isinstance(count, int)]
        cores = view.cores(ranks[0]) if ranks else 0
        if len(counts) != len(ranks) or not cores or sum(counts) <= cores or max(counts) < 2:
            continue
        queues = {rank: queue for rank in ranks[:16] if (queue := run_queue(view, rank))}
        rank = max(queues, key=lambda count: queues[count].value, default=None)
        if rank is not None and queues[rank].share.low > QUEUED:
            return _oversubscribed(
                view,
                spec,
                rank,
                wait=queues[rank].share,
                waited=queued_share(view, ranks),
                threads=counts,
                cores=cores,
            )
    return None


def _oversubscribed(
    view: RunView,
    spec: Spec,
    rank: int,
    *,
    wait: Interval,
    waited: float,
    threads: list[int],
    cores: int,
) -> Finding:
    """``wait``: of that rank; ``waited``: of all ranks on its host."""
    series, ranks = view.per_rank[rank], len(threads)
    wall_ms = float(
        series.rows["wall_ns"][series.steady].sum()
        / 1e6
        / max(series.n_steps[series.steady].sum(), 1)
    )
    wanted = max(1, cores // ranks)
    own_part = _own_part(view, rank)
    lost_ms = wait.value * wall_ms * own_part
    ours = own_part >= MOSTLY_OURS
    others_use = (
        f"; other programs have {100 * (1 - own_part):.0f} % of the cores in use, and fewer "
        "threads get less of them"
    )
    return spec.make(
        severity=_severity(wait.low),
        title=f"{sum(threads)} torch threads on {cores} cores: {100 * waited:.0f} % of the "
        "time waits for a core",
        evidence=f"{ranks} ranks of {max(threads)} threads each on {view.host_of(rank)}; the "
        f"training thread of rank {rank} is ready but waits for a core {wait.value * 100:.0f} % "
        f"of the time (95 % interval {wait.low * 100:.0f} to {wait.high * 100:.0f} %), and each "
        f"parallel region waits for the last of its threads{'' if ours else others_use}",
        fix=Option(
            f"set OMP_NUM_THREADS={wanted} (now {max(threads)}), or "
            f"torch.set_num_threads({wanted})",
            lever=MovedSetting("torch threads", -1),
            mend=ByArguments("torch.set_num_threads", {0: wanted}, had={0: max(threads)})
            if ours
            else None,
        ),
        rank=rank if len(view.ranks) == 1 else None,
        host=view.host_of(rank) or None,
        confidence=0.9,
        recoverable_ms_per_step=lost_ms if ours else 0.0,
        interval_ms_per_step=(
            wait.low * wall_ms * own_part if ours else 0.0,
            wait.high * wall_ms * own_part,
        ),
        proof=Proof(
            statistic="lower end of the 95 % bootstrap interval of run-queue wait / time",
            value=100 * wait.low,
            threshold=100 * QUEUED,
            unit="%",
            formula="recoverable = run-queue wait x step time x the run's part of the cores in "
            f"use = {lost_ms:.3f} ms per step",
            inputs=(
                Input("torch threads", sum(threads), "", f"hello.threads.torch, {ranks} ranks"),
                Input("cores", cores, "", "host.json cpu_count"),
                Input(
                    "run-queue wait",
                    100 * wait.value,
                    "%",
                    f"process.run_wait_ns_total, rank {rank}",
                ),
                Input("the run's part of the cores in use", 100 * own_part, "%", "host, process"),
            ),
        ),
    )


MOSTLY_OURS = 0.5
"""Of the cores in use, from which part on the run's own threads are what it waits for: beside other
programs more threads get more of the cores, and fewer win nothing.
"""


def _own_part(view: RunView, rank: int) -> float:
    """Of the cores in use, what the run's own processes use: the rest of a wait for a core stays
    when they want less. 1 where other programs use next to none.
    """
    used = usage(view, view.host_of(rank))
    if used is None or used.foreign < BUSY_CORES:
        return 1.0
    return used.own / used.machine


@finding(
    id="HO13",
    name="NUMA misplacement",
    family="host",
    cause="host",
    trigger="the training thread runs on a core of another socket than its GPU's "
    "in over half of the looks",
    fix="bind each rank to the cores of its GPU's socket",
    no_use="on a machine with one socket",
    reads="the core last run on against the cores near the GPU",
    silent="no GPU; a single socket; affinity not told",
    traps="a single socket",
)
def numa_misplacement(view: RunView, spec: Spec) -> list[Finding]:
    """Every copy to the GPU and every launch crosses the link between the sockets."""
    counted: dict[int, list[int]] = {}
    for event in view.events("placement"):
        counts_of_rank = counted.setdefault(int(event.get("rank") or 0), [0, 0])
        counts_of_rank[0] += int(event.get("looks") or 0)
        counts_of_rank[1] += int(event.get("looks") or 0) - int(event.get("near") or 0)
    far = {
        rank: (away, looks) for rank, (looks, away) in counted.items() if surely(away, looks) > 0.5
    }
    return [_misplaced(view, spec, rank, *far[rank]) for rank in sorted(far)]


def _misplaced(view: RunView, spec: Spec, rank: int, away: int, looks: int) -> Finding:
    affinity = view.hello(rank).get("affinity") or {}
    near = affinity.get("device_cpus") or "unknown"
    return spec.make(
        severity="medium",
        title=f"rank {rank} runs on another socket than its GPU",
        evidence=f"in {away} of {looks} looks the training thread ran on a core that its GPU is "
        f"not attached to (the GPU's cores: {near}; the rank may use "
        f"{affinity.get('allowed_cpus') or 'unknown'})",
        fix=(
            f"start rank {rank} with `numactl --physcpubind={near} --localalloc`",
            "or all ranks with the launcher's binding",
        ),
        rank=rank,
        host=view.host_of(rank) or None,
        confidence=0.8,
        proof=Proof(
            statistic="lower end of the 95 % Wilson interval of looks on another socket's core",
            value=100 * surely(away, looks),
            threshold=50.0,
            unit="%",
            formula="what it costs depends on the copies and launches of a step and is not "
            "estimated",
            inputs=(
                Input("looks on another socket", away, "", f"placement events, rank {rank}"),
                Input("looks", looks, "", f"placement events, rank {rank}"),
            ),
        ),
    )


def _severity(low: float) -> Severity:
    if low <= 0.05:
        return "info"
    if low > 0.40:
        return "high"
    return "medium"
