"""Host and Python: the CPU does not feed the GPU kernels, or waits for each result."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from gputop_analysis.findings.advice import MovedSetting, Option
from gputop_analysis.findings.compute.device_samples import Samples, samples
from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import H200
from gputop_analysis.findings.pictures import UTILISATION, phases
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import ENOUGH_STEPS, everybody, steady_share
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.series import picked
from gputop_analysis.text import percent
from gputop_analysis.view import Array, RunView

IDLE = 0.30
"""A GPU that is busy for less than 70 % of the time waits for something."""
FEEDING = 0.9
"""CPU time per wall time of a process that does nothing but launch kernels."""
SYNC_SHARE = 0.03
SYNC_REPORTS = 2
"""Reports of stack samples, seconds apart, that find the line: at one alone it is no habit."""
SYNCHRONISES = re.compile(
    r"\.item\(\)|\.cpu\(\)|\.numpy\(\)|\.tolist\(\)|\.nonzero\(|synchronize\(\)|\.to\([\"']cpu[\"']\)"
    r"|\b(float|int|bool|print|isnan|isfinite|isinf)\((?:[^#()]|\((?:[^()]*\))?)*"
    r"(?<![a-zA-Z])(loss|grad|norm|acc)"
)
"""What in a source line makes the CPU wait for the GPU; ``float``, ``print``: with a tensor between
their own parentheses.
"""


@dataclass(frozen=True)
class Feeding:
    """A device that waits for its host."""

    seen: Samples
    busy: float
    cpu: float
    """CPU time per wall time: of the training thread, and of the backward's if that is more."""
    wall_ms: float
    column: str


def launch_bound(view: RunView, rank: int) -> Feeding | None:
    """A rank whose GPU idles while its process computes all the time; None without samples of both.

    Forward and update are launched by the training thread, but the backward by a thread of
    autograd's own.
    """
    gpu_samples, series = samples(view, rank), view.per_rank[rank]
    if gpu_samples is None:
        return None
    rows, counts = series.steady_rows, series.n_steps[series.steady]
    if counts.sum() < ENOUGH_STEPS:
        return None
    wall_ns, waiting_ns = float(rows["wall_ns"].sum()), _waiting_ns(rows)
    cpu = _launching_cpu(rows, _process_cpu(view, rank))
    busy, column = gpu_samples.busy_share()
    if busy is None or busy > 1 - IDLE or cpu < FEEDING or waiting_ns > 0.5 * (1 - busy) * wall_ns:
        return None
    return Feeding(gpu_samples, busy, cpu, wall_ns / 1e6 / float(counts.sum()), column)


def _waiting_ns(rows: Array) -> float:
    """Time in which nothing is launched: for data, copies and other ranks."""
    return sum(float(rows[name].sum()) for name in ("data_ns", "h2d_ns", "comm_ns"))


def _launching_cpu(rows: Array, process_cpu: float) -> float:
    """Cores used to launch: by the training thread, and while it waits in a backward by autograd's.

    What the process uses beyond that is no launching: torch's threads for operators on the CPU wait
    for the next one in a loop.
    """
    thread_cpu = _thread_cpu(rows)
    if thread_cpu <= 0:
        return process_cpu
    working_ns = float(rows["wall_ns"].sum()) - _waiting_ns(rows)
    backward_share = float(rows["backward_ns"].sum()) / max(working_ns, 1.0)
    return max(thread_cpu, min(process_cpu, thread_cpu + backward_share))


def _thread_cpu(rows: Array) -> float:
    """Cores the training thread used while it did not wait; 0: unknown. Records that it did not
    write itself do not tell.
    """
    rows = picked(rows, rows["cpu_ns"] >= 0)
    working_ns = float(rows["wall_ns"].sum()) - _waiting_ns(rows)
    return float(rows["cpu_ns"].sum()) / max(working_ns, 1.0)


def _process_cpu(view: RunView, rank: int) -> float:
    """Cores a rank's process used while it trained; 0: unknown."""
    rows, ends = view.rank_processes.get(rank), view.per_rank[rank].steady_ends_ns
    if rows is None or not len(ends):
        return 0.0
    rows = picked(rows, (rows["t_ns"] >= ends[0]) & (rows["t_ns"] <= ends[-1]))
    if len(rows) < 3:
        return 0.0
    return float(rows["cpu_ns_total"][-1] - rows["cpu_ns_total"][0]) / max(
        1, int(rows["t_ns"][-1] - rows["t_ns"][0])
    )


@finding(
    id="HO01",
    name="launch-bound",
    family="host",
    cause="host",
    trigger=f"the GPU computes for less than {percent(1 - IDLE)} of the time while the process "
    f"uses over {percent(FEEDING)} of a core",
    fix="torch.compile(model), CUDA graphs (mode='reduce-overhead'), a fused "
    "optimizer, or a larger batch",
    explains=("HO06", "HO10", "HO11", "CE04"),
    no_use=(
        "without a GPU of the run; torch.compile: where it is in use; a fused "
        "optimizer: where it is fused"
    ),
    reads="gpu.util_pct or sm_active_pct, steps.cpu_ns against wall time without data, copies and "
    "comm",
    silent=(
        "no GPU samples; a synchronising line seen (HO02); half of the idle time is "
        "data wait, copies or collectives"
    ),
    traps="a GPU that idles for lack of data (IN01)",
    pictures=(
        UTILISATION,
        phases("forward", "backward"),
    ),
    seen_on=H200,
)
def launch_bound_run(view: RunView, spec: Spec) -> Finding | None:
    """Kernels are shorter than their launch."""
    bound_ranks = [bound_rank for rank in view.ranks if (bound_rank := launch_bound(view, rank))]
    if (
        not bound_ranks
        or len(bound_ranks) * 2 <= len(view.ranks)
        or synchronising(view, bound_ranks[0].seen.rank)
    ):
        return None
    bound_rank = sorted(bound_ranks, key=lambda bound_rank: bound_rank.busy)[len(bound_ranks) // 2]
    idle_ms = (1 - bound_rank.busy) * bound_rank.wall_ms
    run = Facts(view, bound_rank.seen.rank)
    compiled = (run.hello.get("compile") or {}).get("used")
    return spec.make(
        severity="high" if bound_rank.busy < 0.5 else "medium",
        title=f"the GPU idles {100 - bound_rank.busy * 100:.0f} % of the time: the CPU launches "
        "kernels too slowly",
        evidence=f"GPU {bound_rank.seen.gpu} busy {bound_rank.busy * 100:.0f} % "
        f"({bound_rank.column}) while the process uses {bound_rank.cpu * 100:.0f} % of a core; "
        f"{bound_rank.wall_ms:.1f} ms a step",
        fix=(
            "torch.compile(model, mode='reduce-overhead')" if compiled else phrase(run, "compile"),
            "fused=True in the optimizer",
            Option("a larger batch if memory allows", lever=MovedSetting("batch", 1)),
        ),
        rank=everybody(view),
        gpu=bound_rank.seen.gpu if len(view.ranks) == 1 else None,
        confidence=0.7,
        recoverable_ms_per_step=idle_ms,
        interval_ms_per_step=(0.0, idle_ms),
        proof=Proof(
            statistic="part of the time in which the GPU computes",
            value=100 * bound_rank.busy,
            threshold=100 * (1 - IDLE),
            unit="%",
            formula="recoverable = (1 - busy) x step time: what a GPU that never waits "
            "would win, an upper bound",
            inputs=(
                bound_rank.seen.input("GPU busy", bound_rank.column),
                Input(
                    "CPU time",
                    100 * bound_rank.cpu,
                    "% of a core",
                    "steps.cpu_ns / (wall - data - comm), process.cpu_ns_total",
                ),
                Input("step time", bound_rank.wall_ms, "ms", "steps.wall_ns, steady steps"),
            ),
        ),
    )


@dataclass(frozen=True)
class Synchronising:
    """A line at which the training thread is seen waiting for the GPU."""

    site: str
    code: str
    phase: str
    ms: float
    """Per step, by stack samples."""
    samples: int


def synchronising(view: RunView, rank: int) -> Synchronising | None:
    """The user's synchronising line sampled most often; None below five samples."""
    counted: Counter[tuple[str, str, str]] = Counter()
    spent_ms: Counter[tuple[str, str, str]] = Counter()
    reports: Counter[tuple[str, str, str]] = Counter()
    for event in view.events("stacks", rank=rank):
        period_ms = float(event.get("period_ms") or 0)
        for sample in event.get("samples", ()):
            code = str(sample.get("code") or "")
            if SYNCHRONISES.search(code):
                where = f"{sample.get('site') or ''} {sample.get('function') or ''}".strip()
                key = where, code, str(event.get("phase"))
                reports[key] += 1
                counted[key] += int(sample.get("count", 1))
                spent_ms[key] += period_ms * int(sample.get("count", 1))  # type: ignore[assignment]
    if not counted:
        return None
    best = max(spent_ms, key=lambda key: spent_ms[key])
    steps = max(1, view.per_rank[rank].total_steps())
    if counted[best] >= 5 and reports[best] >= SYNC_REPORTS:
        return Synchronising(*best, spent_ms[best] / steps, counted[best])
    return None


@finding(
    id="HO02",
    name="synchronisation each step",
    family="host",
    cause="host",
    trigger="stack samples find the training thread at a line that waits for the GPU for over "
    f"{percent(SYNC_SHARE)} of the step, and the GPU idles for over {percent(SYNC_SHARE)} of the "
    "time",
    fix="read values of the GPU every N steps only, or with non_blocking=True",
    explains=("HO06",),
    no_use="without a GPU of the run; where the value is needed in each step",
    reads=(
        "stack samples at lines whose text has .item(), .cpu(), print(loss) and their like; "
        "gpu.util_pct or sm_active_pct"
    ),
    silent=(
        "no GPU samples; fewer than five stack samples at such a line, or all of them at one "
        "moment; a GPU that is busy for "
        "over 97 % of the time"
    ),
    traps="a wait that the GPU's own work fills: only idle time after it is charged",
    pictures=(phases("forward", "backward"),),
    seen_on=H200,
)
def synchronisation(view: RunView, spec: Spec) -> Finding | None:
    """The wait is the GPU's own work; what is lost is its idle time until new kernels arrive."""
    for rank in view.ranks:
        gpu_samples = samples(view, rank)
        wall = steady_share(view, rank, "other") if gpu_samples else None
        if gpu_samples is None or wall is None:
            continue
        line, (busy, column) = synchronising(view, rank), gpu_samples.busy_share()
        if (
            line is None
            or busy is None
            or line.ms < SYNC_SHARE * wall.wall_ms
            or 1 - busy < SYNC_SHARE
        ):
            continue
        idle_ms = (1 - busy) * wall.wall_ms
        return spec.make(
            severity="high" if 1 - busy > 0.25 else "medium",
            title=f"the CPU waits for the GPU at {line.site}: {line.code[:40]}",
            evidence=f"{line.ms:.1f} ms of {wall.wall_ms:.1f} ms a step at this line "
            f"({line.samples} stack samples in {line.phase}), and GPU {gpu_samples.gpu} idles "
            f"{100 - busy * 100:.0f} % of the time ({column})",
            fix=f"do it every 50 steps: if step % 50 == 0: {line.code[:60]}",
            rank=everybody(view),
            gpu=gpu_samples.gpu if len(view.ranks) == 1 else None,
            site=line.site,
            confidence=0.7,
            recoverable_ms_per_step=idle_ms,
            interval_ms_per_step=(0.0, idle_ms),
            proof=Proof(
                statistic="time at the line by stack samples / step time",
                value=100 * line.ms / wall.wall_ms,
                threshold=100 * SYNC_SHARE,
                unit="%",
                formula="recoverable = (1 - busy) x step time: all idle time of the GPU, an upper "
                "bound",
                inputs=(
                    Input(
                        "time at the line",
                        line.ms,
                        "ms",
                        f"stacks events, {line.samples} samples, per step",
                    ),
                    Input(
                        "step time",
                        wall.wall_ms,
                        "ms",
                        f"{wall.clock} clock, {wall.steps:,} steady steps",
                    ),
                    gpu_samples.input("GPU busy", column),
                ),
            ),
        )
    return None
