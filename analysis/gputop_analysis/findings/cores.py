"""Who uses the cores: the run, other programs; and how fast a loader can be on the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gputop_analysis.findings.input.loader_looks import workers
from gputop_analysis.findings.shares import Share, on_device, run_queue
from gputop_analysis.view import Array, RunView
from gputop_probes.record.layout import PROCESS_RANK, PROCESS_WORKER

BUSY_CORES = 0.3
"""Cores that programs outside the run must use before waiting for a core is put down to them."""
HANDOVER_MS = 1.0
"""A worker process hands a batch over in 0.2 to 1 ms: no more workers win that."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Cores in use on a host while the run trains."""

    machine: float
    """By all programs."""
    ranks: float
    """By the training processes, all their threads."""
    workers: float
    """By their loaders' workers."""
    own: float
    """By all processes of the run."""

    @property
    def foreign(self) -> float:
        """By programs outside the run."""
        return max(0.0, self.machine - self.own)


def usage(view: RunView, host: str) -> Usage | None:
    """Cores in use on a host over the window's steps; None where too little was sampled."""
    key = f"cores used on {host}"
    if key not in view.known:
        view.known[key] = _usage(view, host)
    return view.known[key]


def _usage(view: RunView, host: str) -> Usage | None:
    files = view.record.hosts.get(host)
    ends = [s.rows["t_end_ns"] for s in view.per_rank.values() if len(s.rows)]
    if files is None or not ends:
        return None
    begin, end = min(int(e[0]) for e in ends), max(int(e[-1]) for e in ends)
    samples = _between(files.host.rows, begin, end)
    used = samples["cpu_pct"][np.isfinite(samples["cpu_pct"])]
    rows = _between(files.process.rows, begin, end)
    if len(used) < 2 or len(rows) < 2:
        return None
    context = (files.state.context or {}).get("host") or {}
    machine = int(context.get("cpu_count_machine") or samples["cpu_count"][-1])
    lasted_ns = max(1, int(rows["t_ns"][-1] - rows["t_ns"][0]))
    by_kind: Counter[int] = Counter()
    for pid in np.unique(rows["pid"]):
        rows_of_pid = rows[rows["pid"] == pid]
        by_kind[int(rows_of_pid["kind"][-1])] += int(
            rows_of_pid["cpu_ns_total"][-1] - rows_of_pid["cpu_ns_total"][0]
        )
    return Usage(
        machine=float(used.mean()) / 100 * machine,
        ranks=by_kind[PROCESS_RANK] / lasted_ns,
        workers=by_kind[PROCESS_WORKER] / lasted_ns,
        own=by_kind.total() / lasted_ns,
    )


def _between(rows: Array, begin_ns: int, end_ns: int) -> Array:
    return rows[(rows["t_ns"] >= begin_ns) & (rows["t_ns"] <= end_ns)]


def foreign_cores(view: RunView, host: str) -> float:
    """Cores that programs outside the run use on a host; 0 where it is not known."""
    used = usage(view, host)
    return used.foreign if used else 0.0


def neighbours(view: RunView, host: str) -> list[tuple[str, float]]:
    """Programs outside the run that use most cores, with how many; the most first."""
    cores: dict[str, float] = {}
    looks = 0
    for event in view.events("neighbours"):
        if event.get("host", host) == host:
            looks += 1
            for process in event.get("processes") or ():
                name = str(process.get("name"))
                cores[name] = cores.get(name, 0.0) + float(process.get("cores") or 0.0)
    largest = sorted(cores.items(), key=lambda item: -item[1])[:3]
    return [(name, total / looks) for name, total in largest]


def own_cores(view: RunView, rank: int, busy_threads: int) -> float | None:
    """Cores that a rank gets for so many of its threads, workers among them; None where they are
    not known.

    The ranks of a host and other programs share its cores in equal parts, thread by thread. How
    many other threads want a core shows in how long the training thread waits for one.
    """
    cores, host = view.cores(rank), view.host_of(rank)
    if not cores:
        return None
    ranks = max(1, sum(view.host_of(other_rank) == host for other_rank in view.ranks))
    threads = ranks * busy_threads
    wanting = threads + _rivals(view, rank, ranks, cores)
    return min(float(busy_threads), cores * threads / max(wanting, cores) / ranks)


def _slower_beside(view: RunView, rank: int, busy: float, workers: int) -> float:
    """How many times as long the training thread takes beside its workers.

    ``busy``: CPU time of a step over the time that is no input.
    """
    cores, host = view.cores(rank), view.host_of(rank)
    if not cores:
        return 1.0
    ranks = max(1, sum(view.host_of(other_rank) == host for other_rank in view.ranks))
    rivals = _rivals(view, rank, ranks, cores)
    if not rivals:
        return 1.0  # its own processes in each other's way are counted as work on the cores
    speed = min(1.0, cores / (rivals + ranks))
    then = ranks * min(1.0 + workers, max(1.0, busy / speed))
    return speed / min(1.0, cores / (rivals + then))


def _rivals(view: RunView, rank: int, ranks: int, cores: int) -> float:
    """Threads of other programs that want a core at any time; what they use, at least."""
    foreign = foreign_cores(view, view.host_of(rank))
    queue, running = run_queue(view, rank), _running(view, rank)
    if foreign < BUSY_CORES or queue is None or running is None:
        return foreign if foreign >= BUSY_CORES else 0.0
    part = running / max(running + queue.value, 1e-9)
    crew = workers(view).get(rank)
    demand = ranks * (1 + (crew.count * crew.cpu if crew else 0.0))
    if part < UNDISTURBED:
        return max(foreign, cores / max(part, 0.05) - demand)
    return foreign


def _running(view: RunView, rank: int) -> float | None:
    """Part of the time in which the training thread runs; None: not sampled."""
    rows = view.rank_processes.get(rank)
    if rows is None or len(rows) < 3 or (rows["thread_cpu_ns_total"] < 0).any():
        return None
    ran = float(rows["thread_cpu_ns_total"][-1] - rows["thread_cpu_ns_total"][0])
    return ran / max(1, int(rows["t_ns"][-1] - rows["t_ns"][0]))


UNDISTURBED = 0.95
"""Part of the time that a ready thread runs, from which nothing else seems to want its core."""


def work_ms(view: RunView, wait: Share, threads: int | None) -> float | None:
    """CPU time of a step: the rank's process, and its workers; None: not known.

    ``threads``: torch's threads that count while the model runs; None: all the CPU time counts.
    Between operators these threads wait for the next one in a loop, which takes cores that they do
    not need: so at most one thread makes or awaits a batch, and at most so many compute the rest.
    Where the samplers saw too little, the training thread's own CPU time, without workers.
    """
    rows, crew = view.rank_processes.get(wait.rank), workers(view).get(wait.rank)
    if rows is not None and len(rows) >= 3 and rows["cpu_ns_total"][-1] > rows["cpu_ns_total"][0]:
        lasted = max(1, int(rows["t_ns"][-1] - rows["t_ns"][0]))
        used_ms = wait.wall_ms * float(rows["cpu_ns_total"][-1] - rows["cpu_ns_total"][0]) / lasted
        if threads is not None:
            used_ms = min(used_ms, wait.mean_ms + threads * (wait.wall_ms - wait.mean_ms))
        return used_ms + (crew.count * crew.cpu * wait.wall_ms if crew else 0.0)
    series = view.per_rank[wait.rank]
    used, counts = series.steady_rows["cpu_ns"], series.n_steps[series.steady]
    has_cpu_time = used >= 0
    if crew is not None or not has_cpu_time.any():
        return None
    return float(used[has_cpu_time].sum()) / 1e6 / max(1.0, float(counts[has_cpu_time].sum()))


def computing_threads(view: RunView, rank: int) -> int | None:
    """Torch's threads that may have work while the model runs; None: not known.

    Beside a GPU one: the training thread and that of the backward take turns at launching.
    """
    if on_device(view, rank):
        return 1
    threads = (view.hello(rank).get("threads") or {}).get("torch")
    return threads if isinstance(threads, int) else None


def won_by_workers(
    view: RunView, wait: Share, now: int, then: int, *, threads: int | None = None
) -> float:
    """Milliseconds a step that ``then`` workers would win over ``now``, on the cores that there
    are.

    A step then takes as long as the slowest of three: the work that is no input; making its batches
    in ``then`` processes; and all of it together on the rank's cores. Handing a batch over stays.
    ``threads``: torch's threads that have work while the model runs, where they are not as many as
    it has.
    """
    rest_ms = max(0.0, wait.wall_ms - wait.mean_ms)
    if now == 0:
        making_ms = wait.mean_ms / then
    else:
        making_ms = wait.wall_ms * now / then
    threads = threads or computing_threads(view, wait.rank)
    cores = own_cores(view, wait.rank, (threads or 1) + then)
    work = work_ms(view, wait, threads)
    if work is None:
        work = wait.wall_ms if now == 0 else rest_ms + now * wait.wall_ms
    slower = _slower_beside(view, wait.rank, work / rest_ms if rest_ms else 1.0, then)
    best_ms = max(slower * rest_ms, slower * making_ms, work / cores if cores else 0.0)
    handover_ms = HANDOVER_MS if now == 0 else 0.0
    return max(0.0, wait.wall_ms - best_ms - handover_ms)
