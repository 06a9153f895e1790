"""Memory that is mapped anew in each step."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from gputop_analysis.findings.host.cpu_share import between
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.option import Option
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.sites import top_site
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.stats import Interval, block_bootstrap
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

FAULTS_PER_STEP = 5000.0
LEAST_SHARE = 0.02
WON_BACK, WON_BACK_AT_LEAST = 0.85, 0.75
"""Of the time in the kernel: clearing a page brings it into the cache, which writing to memory that
was kept has to do itself (0.78 to 1.0 was measured on a virtual machine with a buffer of 48 MB).
"""
PLAUSIBLE_US = 4.0
"""A fault costs 0.2 us on bare metal, 2 us in a virtual machine; more has other reasons."""
PLACED = 0.4
"""Of the time in the kernel; the backward of a line touches pages as well."""
_PHASES = ("forward", "data", "h2d", "other")
"""In which a line of the user's may fill memory, where faults were not counted by phase."""
_OF_TORCH = ("backward", "optimizer")
_KEEPS_MEMORY = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_OTHER_MALLOCS = ("jemalloc", "tcmalloc", "mimalloc")


@finding(
    id="HO12",
    name="page-fault storm",
    family="host",
    cause="host",
    trigger=f"over {FAULTS_PER_STEP:,.0f} page faults a step, and the time in the kernel that "
    f"goes with them is over {percent(LEAST_SHARE)} of the step",
    fix="reuse buffers instead of allocating them each step; keep freed memory in the process",
    no_use="the environment's settings: with another malloc than glibc's, or where they are set",
    reads="process.minor_faults_total per step, time in the kernel of the training thread",
    silent="fewer than 20 steps of samples",
    traps="the first steps, in which memory is touched for the first time",
    seen_on=CPU,
)
def page_fault_storm(view: RunView, spec: Spec) -> Finding | None:
    """Large buffers come and go each step, and the kernel maps and clears their pages anew."""
    faults_by_rank = {
        rank: faults for rank in view.ranks if (faults := faults_per_step(view, rank))
    }
    rank = max(faults_by_rank, key=lambda rank: faults_by_rank[rank].per_step, default=None)
    if rank is None or faults_by_rank[rank].per_step <= FAULTS_PER_STEP:
        return None
    faults, cost_us = faults_by_rank[rank], _cost_us(view, rank)
    if cost_us is None or faults.per_step * cost_us.value / 1e3 <= LEAST_SHARE * faults.wall_ms:
        return None
    cost = Interval(*(faults.per_step * us / 1e3 for us in cost_us))
    place = _likely_place(view, rank, cost.value)
    other_faults = [other.per_step for r, other in faults_by_rank.items() if r != rank]
    return spec.make(
        severity="high" if cost.value > 0.25 * faults.wall_ms else "medium",
        title=f"{faults.per_step:,.0f} page faults a step: memory is mapped anew each time",
        evidence=f"{faults.per_step:,.0f} minor faults a step over {faults.steps:,} steps "
        f"({faults.per_step * 4 / 1024:,.0f} MiB of 4 KiB pages); the training spends "
        f"{cost_us.value:.2f} us in the kernel for each: {cost.value:.1f} ms of "
        f"{faults.wall_ms:.1f} ms a step" + (f"; {place.words}" if place else ""),
        fix=less_mapping(view, rank, by_torch=place is not None and place.by_torch),
        rank=rank if all(faults.per_step > 2 * other for other in other_faults) else None,
        site=place.site if place else None,
        confidence=0.8,
        recoverable_ms_per_step=WON_BACK * cost.value,
        interval_ms_per_step=(WON_BACK_AT_LEAST * cost.low, cost.high),
        proof=Proof(
            statistic="minor page faults per step",
            value=faults.per_step,
            threshold=FAULTS_PER_STEP,
            unit="",
            formula=f"recoverable = {WON_BACK} x faults x time in the kernel for each = "
            f"{WON_BACK * cost.value:.3f} ms a step",
            inputs=(
                Input(
                    "faults per step",
                    faults.per_step,
                    "",
                    f"process.minor_faults_total, rank {rank}, interpolated",
                ),
                Input(
                    "time in the kernel per fault",
                    cost_us.value,
                    "us",
                    f"paging events, rank {rank}, thread_system_ms (else system_ms) / faults",
                ),
                Input(
                    "step time",
                    faults.wall_ms,
                    "ms",
                    f"steps.wall_ns, rank {rank}, {faults.steps:,} steady steps",
                ),
            ),
        ),
    )


class _Place(NamedTuple):
    """Where the pages are likely touched."""

    site: str
    words: str
    by_torch: bool = False
    """Whether torch allocates there what no line of the script could keep."""


def _likely_place(view: RunView, rank: int, cost_ms: float) -> _Place | None:
    """The line at which surely most of a phase lies, by its stack samples: of the phase with most
    of the faults where those were counted, else of one that takes long enough for at least
    ``PLACED`` of them; None where there is none.
    """
    counted = _faults_by_phase(view, rank)
    if counted:
        phase, count = counted.most_common(1)[0]
        share = count / sum(counted.values())
        site = top_site(view, phase, rank, all_work=True)
        if share < PLACED or site is None or site.site is None:
            return None
        words = f"{100 * share:.0f} % of them came in the {phase}, most of which is at {site.site}"
        return _Place(site.site, words, by_torch=phase in _OF_TORCH)
    series, places = view.per_rank[rank], []
    for phase in _PHASES:
        site = top_site(view, phase, rank, all_work=True)
        if site is not None and site.site is not None:
            words = f"{100 * site.share:.0f} % of the {phase} is at {site.site}, likely the place"
            spent_ms = site.share * series.mean_ms(f"{phase}_ns")
            places.append((spent_ms, _Place(site.site, words)))
    longest_ms, place = max(places, key=lambda timed: timed[0], default=(0.0, None))
    return place if longest_ms >= PLACED * cost_ms else None


def _faults_by_phase(view: RunView, rank: int) -> Counter[str]:
    counted: Counter[str] = Counter()
    for event in view.events("paging", rank=rank):
        counted.update(event.get("phases") or {})
    return counted


def less_mapping(view: RunView, rank: int, *, by_torch: bool = False) -> str | Option:
    """Where malloc is already told to keep what is freed, only the script can do more; where torch
    allocates, only malloc.
    """
    reuse = "allocate large buffers once and write into them (out=, copy_)"
    env = view.hello(rank).get("env") or {}
    keeps = any(env.get(name) for name in _KEEPS_MEMORY)
    if keeps or any(name in str(env.get("LD_PRELOAD", "")) for name in _OTHER_MALLOCS):
        return Option(f"{reuse}: malloc keeps what is freed already", promises=False)
    keep = (
        "keep freed memory in the process: MALLOC_TRIM_THRESHOLD_=-1 "
        "MALLOC_MMAP_THRESHOLD_=4294967296 in the environment, or LD_PRELOAD of jemalloc"
    )
    return keep if by_torch else f"{reuse}, or {keep}"


def _cost_us(view: RunView, rank: int) -> Interval | None:
    """Kernel time of the training per page fault while there are many; None: not known, not
    plausible.
    """
    cost_us = _kernel_us(view, rank, "system_ms")
    if cost_us is None or not 0 < cost_us.value <= PLAUSIBLE_US:
        return None
    own_us = _of_training_thread_us(view, rank) or cost_us
    return Interval(own_us.value, own_us.low, max(own_us.high, cost_us.high))


def _of_training_thread_us(view: RunView, rank: int) -> Interval | None:
    """The same of the training thread alone: while torch's other threads fault beside it, a step
    gets longer by its own faults, and by those of others only where it waits for them. None: not
    known.
    """
    events = view.events("paging", rank=rank)
    if any(event.get("thread_system_ms") is None for event in events):
        return None
    return _kernel_us(view, rank, "thread_system_ms")


def _kernel_us(view: RunView, rank: int, field: str) -> Interval | None:
    events = list(view.events("paging", rank=rank))
    faults = np.array([float(event.get("faults") or 0) for event in events])
    system_us = np.array([1e3 * float(event.get(field) or 0) for event in events])
    if len(events) < 2 or not faults.sum():
        return None
    return block_bootstrap(system_us, faults, block=1)


class Faults(NamedTuple):
    """Minor page faults of a rank, over its steady steps."""

    per_step: float
    wall_ms: float
    steps: int


def faults_per_step(view: RunView, rank: int) -> Faults | None:
    """Mean from the warm-up's end to the last step; None where too little was sampled."""
    rows, series = view.rank_processes.get(rank), view.per_rank[rank]
    if rows is None or not series.steady.any():
        return None
    ends = series.steady_ends_ns
    rows = between(rows, int(ends[0]), int(ends[-1]) + 1)
    if len(rows) < 3 or rows["minor_faults_total"][0] < 0:
        return None
    seconds = float(rows["t_ns"][-1] - rows["t_ns"][0]) / 1e9
    steps, wall_s = (
        int(series.n_steps[series.steady].sum()),
        float(series.rows["wall_ns"][series.steady].sum()) / 1e9,
    )
    per_s = float(rows["minor_faults_total"][-1] - rows["minor_faults_total"][0]) / max(
        seconds, 1e-9
    )
    if seconds >= 1.0:
        return Faults(per_s * wall_s / steps, 1e3 * wall_s / steps, steps)
    return None
