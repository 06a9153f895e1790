"""How much of a step one thing takes, with an interval: what most findings are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_agent import wire
from gputop_analysis.proof import Input, Proof
from gputop_analysis.series import RankSeries, picked
from gputop_analysis.stats import Interval, block_bootstrap, block_length
from gputop_analysis.view import RunView, once_per_view

Array = npt.NDArray[Any]

ENOUGH_STEPS, ENOUGH_RECORDS = 20, 10
"""Fewer steps than this (or records, where steps are folded) are not judged."""


@dataclass(frozen=True)
class Share:
    """Time of one thing on one rank. Intervals are worked out when they are asked for."""

    rank: int
    values_ms: Array
    """Per record; a record stands for ``counts`` steps."""
    walls_ms: Array
    counts: Array
    clock: str = "host"
    part_of_step: float = 1.0
    """How much of the step ``walls_ms`` are; the rest is waiting for a core."""

    @cached_property
    def share(self) -> Interval:
        """Of the wall time, 0 to 1."""
        return block_bootstrap(self.values_ms, self.walls_ms, self._block)

    @cached_property
    def ms(self) -> Interval:
        """Per step."""
        return block_bootstrap(self.values_ms, self.counts, self._block)

    @cached_property
    def mean_ms(self) -> float:
        """Per step, the same as ``ms.value`` without an interval."""
        return float(self.values_ms.sum() / self.counts.sum())

    @property
    def wall_ms(self) -> float:
        """Wall time per step."""
        return float(self.walls_ms.sum() / self.counts.sum())

    @property
    def of_step(self) -> str:
        """``22.5 ms of 34.0 ms a step``, and where waiting for a core is left out, that it is."""
        whole_ms = self.wall_ms / self.part_of_step
        text = f"{self.ms.value:.1f} ms of {whole_ms:.1f} ms a step"
        if self.part_of_step == 1.0:
            return text
        return f"{text} ({self.wall_ms:.1f} ms without waiting for a core)"

    @property
    def steps(self) -> int:
        """How many steps it was judged by."""
        return round(float(self.counts.sum()))

    @property
    def percent(self) -> str:
        """``34 % of the step (95 % interval 31 to 37 %)``."""
        value, low, high = (100 * x for x in self.share)
        of_time = "the step" if self.part_of_step == 1.0 else "the latter"
        return f"{value:.0f} % of {of_time} (95 % interval {low:.0f} to {high:.0f} %)"

    def surely_above(self, threshold: float) -> bool:
        """Whether the lower end of the share's interval exceeds ``threshold``."""
        return self.values_ms.sum() > threshold * self.walls_ms.sum() and self.share.low > threshold

    def proof(
        self, what: str, threshold: float, source: str, formula: str = "", *inputs: Input
    ) -> Proof:
        """Of a finding that is raised where ``what`` surely takes more than ``threshold`` of the
        step.

        ``source`` is the column it comes from; ``formula`` how the recoverable time follows, if it
        is not all of it.
        """
        read = f"rank {self.rank}, {self.steps:,} steps"
        return Proof(
            statistic=f"lower end of the 95 % block-bootstrap interval of {what} / step time",
            value=100 * self.share.low,
            threshold=100 * threshold,
            unit="%",
            formula=formula
            or f"recoverable = sum({what}) / steps = {self.mean_ms:.3f} ms per step",
            inputs=(
                Input(f"{what} per step", self.mean_ms, "ms", f"{source}, {read}"),
                Input("step time", self.wall_ms, "ms", f"{self.clock} clock, {read}"),
                Input(f"share of {what}", 100 * self.share.value, "%", "their ratio"),
                Input(
                    "upper end of its interval",
                    100 * self.share.high,
                    "%",
                    f"resampled in blocks of {self._block}",
                ),
                *inputs,
            ),
        )

    @cached_property
    def _block(self) -> int:
        return block_length(self.values_ms / np.maximum(self.walls_ms, 1e-9))


def steady_share(view: RunView, rank: int, phase: str) -> Share | None:
    """A phase over the steady steps: on the device's clock if there is one, else the host's."""
    return device_share(view, rank, phase) or share_over(
        view.per_rank[rank], view.per_rank[rank].steady, lambda rows: rows[f"{phase}_ns"]
    )


def whole_share(view: RunView, rank: int, nanoseconds: Callable[[Array], Array]) -> Share | None:
    """Something over all steps but the first, which contains the set-up."""
    series = view.per_rank[rank]
    return share_of_all(series, series.after_set_up, nanoseconds)


def device_share(view: RunView, rank: int, phase: str) -> Share | None:
    """A phase on the device's clock; None where it measured fewer than 20 of the steps."""
    rows = view.device(rank)
    column = f"{phase}_ms"
    if len(rows) < ENOUGH_STEPS or column not in (rows.dtype.names or ()):
        return None
    steady = (rows["flags"] & wire.F_UNSTEADY) == 0
    rows = picked(rows, steady & np.isfinite(rows["total_ms"]) & np.isfinite(rows[column]))
    if len(rows) < ENOUGH_STEPS:
        return None
    return Share(
        rank,
        rows[column].astype(float),
        rows["total_ms"].astype(float),
        np.ones(len(rows)),
        "device",
    )


SOME = 32
"""Ranks that stand for all of them where the question is what a typical rank does."""


def some_ranks(view: RunView) -> list[int]:
    """All ranks, or 32 of them that are spread evenly over a larger run."""
    ranks = view.ranks
    return ranks if len(ranks) <= SOME else ranks[:: -(-len(ranks) // SOME)]


def most_of(view: RunView, column: str, at_most: int = 8) -> list[int]:
    """The ranks with the largest plain sum of a column, largest first: where the worst one is to be
    found.

    A rank that has none of it is left out.
    """
    sums = _sums(view)[column]
    return [view.ranks[i] for i in np.argsort(-sums, kind="stable")[:at_most] if sums[i] > 0]


@once_per_view
def _sums(view: RunView) -> dict[str, Array]:
    columns = ("gc_ns", "checkpoint_ns", "eval_ns")
    tables = [series.rows for series in view.per_rank.values()]
    return {name: np.array([float(rows[name].sum()) for rows in tables]) for name in columns}


@dataclass(frozen=True)
class Queue:
    """Waiting for a core although ready to run, between samples of a rank's process."""

    waited_ns: Array
    passed_ns: Array

    @cached_property
    def share(self) -> Interval:
        """Of the time, 0 to 1."""
        return block_bootstrap(self.waited_ns, self.passed_ns, block=1)

    @cached_property
    def value(self) -> float:
        """The same without an interval."""
        return float(self.waited_ns.sum() / self.passed_ns.sum())

    @property
    def seconds(self) -> float:
        """Over so many seconds."""
        return float(self.passed_ns.sum()) / 1e9


def run_queue(view: RunView, rank: int) -> Queue | None:
    """Training thread's wait for a core, warm-up to last step; None: too few samples."""
    key = f"run queue of {rank}"
    if key not in view.known:
        view.known[key] = _run_queue(view, rank)
    return view.known[key]


def queued_share(view: RunView, ranks: Iterable[int]) -> float:
    """Part of the ranks' time that they spent waiting for a core, as the budget's line adds it up:
    the figure that findings tell. A rank that is not sampled counts as one that never waits.
    """
    walls = {rank: float(view.per_rank[rank].rows["wall_ns"].sum()) for rank in ranks}
    waited = sum(
        queue.value * wall for rank, wall in walls.items() if (queue := run_queue(view, rank))
    )
    return waited / max(sum(walls.values()), 1.0)


_SHORTEST_NS = 300_000_000
"""Processes are sampled twice a second."""


def run_queue_share(view: RunView, rank: int, from_ns: int, until_ns: int) -> float | None:
    """Share of a stretch of time that the training thread waited for a core, from the samples
    around its ends.

    None where less than ``_SHORTEST_NS`` of it lies behind the first sample.
    """
    rows = view.rank_processes.get(rank)
    if rows is None or not (valid := rows["run_wait_ns_total"] >= 0).any():
        return None
    sampled_ns, waited_ns = rows["t_ns"][valid], rows["run_wait_ns_total"][valid]
    from_ns = max(from_ns, int(sampled_ns[0]))
    if until_ns - from_ns < _SHORTEST_NS:
        return None
    begin, end = np.interp((from_ns, until_ns), sampled_ns, waited_ns)
    return float(np.clip((end - begin) / (until_ns - from_ns), 0.0, 1.0))


def without_queueing(view: RunView, rank: int, ms: float) -> float:
    """Of a time of work, what is left without its waiting for a core, which IN04 reports."""
    queue = run_queue(view, rank)
    return ms * (1 - queue.value) if queue else ms


def _run_queue(view: RunView, rank: int) -> Queue | None:
    rows, series = view.rank_processes.get(rank), view.per_rank[rank]
    if rows is None or not series.steady.any():
        return None
    ends = series.steady_ends_ns
    inside = (
        (rows["t_ns"] >= ends[0])
        & (rows["t_ns"] <= ends[-1] + 10**9)
        & (rows["run_wait_ns_total"] >= 0)
    )
    rows = picked(rows, inside)
    if len(rows) < 3 or rows["t_ns"][-1] - rows["t_ns"][0] < 10**9:
        return None
    return Queue(np.diff(rows["run_wait_ns_total"]), np.diff(rows["t_ns"]))


CROWDED = 0.75
"""Part of the cores in use from which a thread may be queued because there are too few of them."""


def crowded(view: RunView, rank: int) -> bool:
    """Whether cores are scarce on the rank's host: most of the machine is busy, or of the cores
    that the run may use.

    Otherwise the scheduler has put two threads on one core although another one is free. True where
    it is not known.
    """
    host = view.record.hosts.get(view.host_of(rank))
    series = view.per_rank[rank]
    if host is None or not series.steady.any():
        return True
    ends = series.steady_ends_ns
    samples = _between(host.host.rows, ends[0], ends[-1])
    used = samples["cpu_pct"][np.isfinite(samples["cpu_pct"])]
    if len(used) < 2 or np.isfinite(samples["cgroup_cpu_limit"]).any():
        return True
    rows = _between(host.process.rows, ends[0], ends[-1])
    cores = max(1, int(samples["cpu_count"][-1]))
    return bool(used.mean() > 100 * CROWDED or _cores_used(rows) > CROWDED * cores)


def _between(rows: Array, begin_ns: int, end_ns: int) -> Array:
    """Samples of that time."""
    return picked(rows, (rows["t_ns"] >= begin_ns) & (rows["t_ns"] <= end_ns))


def _cores_used(rows: Array) -> float:
    """Cores that the processes sampled in ``rows`` used together."""
    if len(rows) < 2:
        return 0.0
    grown = 0
    for pid in np.unique(rows["pid"]):
        total = rows["cpu_ns_total"][rows["pid"] == pid]
        grown += int(total[-1] - total[0])
    return grown / max(1, int(rows["t_ns"][-1] - rows["t_ns"][0]))


def on_device(view: RunView, rank: int) -> bool:
    """Whether the rank trains on an accelerator."""
    return str(view.hello(rank).get("device") or "cpu").split(":")[0] not in ("cpu", "")


def typical(shares: Iterable[Share | None]) -> Share | None:
    """The lower-median rank's share: what holds for the run and not for one slow rank."""
    by_time = sorted((s for s in shares if s is not None), key=lambda s: s.mean_ms)
    return by_time[(len(by_time) - 1) // 2] if by_time else None


def worst(shares: Iterable[Share | None]) -> Share | None:
    """The rank with the most of it: what stops one rank stops all of them."""
    return max((s for s in shares if s is not None), key=lambda s: s.mean_ms, default=None)


def only_on(share: Share, shares: Iterable[Share | None]) -> int | None:
    """The rank, if it is alone or the others have less than half; None: everybody's."""
    other_shares = [s for s in shares if s is not None and s.rank != share.rank]
    if all(s.mean_ms < 0.5 * share.mean_ms for s in other_shares):
        return share.rank
    return None


def everybody(view: RunView) -> int | None:
    """The rank to name for what concerns the whole run: the only one, or none."""
    return view.ranks[0] if len(view.ranks) == 1 else None


def share_over(
    series: RankSeries, mask: Array, nanoseconds: Callable[[Array], Array]
) -> Share | None:
    """Something over the masked records of one rank; None for too few of them.

    Where most steps were only counted, the windows in which they were measured stand for them: a
    random sample, whose spread is that of the phases, while estimates repeat each other. What such
    a sample takes is scaled to the time and the steps of all that it stands for, which are known.
    A step with an evaluation or the like is measured wherever it comes, and stands for itself.
    """
    unsteady = (series.rows["flags"] & wire.F_UNSTEADY) != 0
    ordinary = mask & ~unsteady
    windows = ordinary & series.representative
    if series.n_steps[windows].sum() < ENOUGH_STEPS or windows.sum() < ENOUGH_RECORDS:
        return share_of_all(series, mask, nanoseconds)
    rows, counts = series.rows, series.n_steps
    time_weight = rows["wall_ns"][ordinary].sum() / rows["wall_ns"][windows].sum()
    step_weight = counts[ordinary].sum() / counts[windows].sum()
    used = windows | (mask & unsteady)
    sampled = windows[used]
    in_ms = np.where(sampled, time_weight, 1.0) / 1e6
    return Share(
        series.rank,
        nanoseconds(rows)[used] * in_ms,
        rows["wall_ns"][used] * in_ms,
        counts[used] * np.where(sampled, step_weight, 1.0),
    )


def share_of_all(
    series: RankSeries, mask: Array, nanoseconds: Callable[[Array], Array]
) -> Share | None:
    """The same over all masked records, for what each measures: checkpoints, compilation, GC."""
    counts = series.n_steps[mask]
    if len(counts) < ENOUGH_RECORDS or counts.sum() < ENOUGH_STEPS:
        return None
    return Share(
        series.rank,
        nanoseconds(series.rows)[mask] / 1e6,
        series.rows["wall_ns"][mask] / 1e6,
        counts,
    )
