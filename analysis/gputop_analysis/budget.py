"""The efficiency budget: where the wall time of the steps went, to the nanosecond.

``budget(view)`` gives each rank's wall time to eleven lines that add up to it exactly, and the sum
over the ranks. The lines are disjoint; what each one means and what it is read from stands in
``LINES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gputop_analysis.findings.shares import run_queue
from gputop_analysis.flops import FlopsUtilization, efficiency
from gputop_analysis.split import WallSplit, apportion, split_of
from gputop_analysis.view import RunView, once_per_view
from gputop_analysis.waits import hidden_wait_ms, straggling_shares


@dataclass(frozen=True, slots=True)
class LineDefinition:
    """What one line of the budget counts."""

    title: str
    text: str
    source: str
    """The columns of the record it comes from."""


LINES: dict[str, LineDefinition] = {
    "useful_compute": LineDefinition(
        "useful compute",
        "where the FLOPs of a step and the device's dense peak are known: model FLOPs / peak, the "
        "time that a perfect device would take; elsewhere forward, backward and optimizer less "
        "exposed waiting, without steps whose update was skipped",
        "steps.forward_ns, backward_ns, optimizer_ns (device clock where there is "
        "one), tokens or samples",
    ),
    "compute_overhead": LineDefinition(
        "compute overhead",
        "forward, backward and optimizer time that is neither useful compute nor exposed waiting: "
        "kernels below the peak, recomputation, gaps between launches, steps whose update "
        "GradScaler skipped",
        "steps.forward_ns, backward_ns, optimizer_ns (device clock where there is one), flags",
    ),
    "data_stall": LineDefinition(
        "data stall",
        "waiting for the next batch, and copying it to the device",
        "steps.data_ns, h2d_ns",
    ),
    "host": LineDefinition(
        "host",
        "host code between the phases: logging, metrics, schedulers, callbacks",
        "steps.other_ns - agent_ns",
    ),
    "core_wait": LineDefinition(
        "waiting for a core",
        "the training thread is ready to run and other threads have the cores: the share of the "
        "time after the warm-up that IN04 judges, taken out of the lines in which the thread "
        "works, the rest out of those in which it waits; on a device's clock it is not taken out, "
        "as the device goes on meanwhile",
        "process.run_wait_ns_total",
    ),
    "communication": LineDefinition(
        "communication exposed",
        "waiting for collectives that nothing overlaps, as long as on the rank "
        "that waits least in each step",
        "comm.wait_ns of DDP (moved out of backward), steps.comm_ns of collectives called from "
        "Python; those that FSDP or DeepSpeed run inside forward and backward stay there",
    ),
    "straggler_wait": LineDefinition(
        "straggler wait",
        "the rest of that waiting: a rank that is done earlier stands still until "
        "the slowest one arrives",
        "comm.wait_ns, steps.comm_ns, compared over the ranks step by step",
    ),
    "checkpoint": LineDefinition("checkpoint", "saving checkpoints", "steps.checkpoint_ns"),
    "eval": LineDefinition("eval", "evaluation between training steps", "steps.eval_ns"),
    "compile": LineDefinition("compile", "torch.compile tracing and compiling", "steps.compile_ns"),
    "other": LineDefinition(
        "other",
        "set-up inside the first step of a process, and gputop's own one-off work",
        "steps.other_ns of the first step, agent_ns",
    ),
}
"""The lines in the order in which they are shown."""

_WORK = (
    "forward",
    "backward",
    "optimizer",
    "host",
    "set_up",
    "checkpoint",
    "eval",
    "compile",
    "h2d",
)
"""Parts of a split in which the training thread works."""

OF_ALL_STEPS = "of all steps, the first ones too"
"""Said beside the lines: they add up to more a step than the mean, which leaves those out."""
HIDDEN = (
    "waiting for the collectives of a sharded model inside forward and backward is counted as "
    "compute, a trace (`--trace`) tells it apart"
)


@dataclass(frozen=True, slots=True)
class RankBudget:
    """One rank's wall time. ``sum(lines_ns.values()) == wall_ns``, always."""

    rank: int
    steps: int
    wall_ns: int
    lines_ns: dict[str, int]
    """By name, all names of ``LINES`` in their order."""
    clock: str
    """``device`` where CUDA events split the compute, else ``host``."""
    efficiency: FlopsUtilization | None = None
    """None where the FLOPs of a step or the device's peak are not known."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The same of the run: sum over the ranks, so that an idle rank counts as much as it costs."""

    steps: int
    """Steps of all ranks together."""
    wall_ns: int
    lines_ns: dict[str, int]
    ranks: tuple[RankBudget, ...]
    mfu: float | None
    """Model FLOPs utilisation, 0 to 1, over the steady steps (PaLM, appendix B); mean of the ranks
    that know theirs.
    """
    hfu: float | None
    """Hardware FLOPs utilisation: with recomputed FLOPs counted as well."""
    compute_anchor: str
    """What ``useful_compute`` rests on, in words."""
    not_told_apart: str = ""
    """What the lines hide, in words; empty where nothing is known to be hidden."""

    def share(self, line: str) -> float:
        """Of the wall time, 0 to 1."""
        return self.lines_ns[line] / self.wall_ns if self.wall_ns else 0.0

    def ms_per_step(self, line: str) -> float:
        """Mean over all steps of all ranks."""
        return self.lines_ns[line] / 1e6 / self.steps if self.steps else 0.0


@once_per_view
def budget(view: RunView) -> Budget:
    """The budget of the view's window. Without steps all lines are 0."""
    shares = straggling_shares(view)
    ranks = tuple(_rank_budget(view, rank, shares.get(rank, 0.0)) for rank in view.ranks)
    efficiencies = [
        rank_budget.efficiency for rank_budget in ranks if rank_budget.efficiency is not None
    ]
    if efficiencies:
        compute_anchor = efficiencies[0].source
    else:
        compute_anchor = "FLOPs or the device's peak are not known: measured compute"
    return Budget(
        steps=sum(rank_budget.steps for rank_budget in ranks),
        wall_ns=sum(rank_budget.wall_ns for rank_budget in ranks),
        lines_ns={name: sum(rank_budget.lines_ns[name] for rank_budget in ranks) for name in LINES},
        ranks=ranks,
        mfu=_mean([rank_budget.mfu for rank_budget in efficiencies]),
        hfu=_mean([rank_budget.hfu for rank_budget in efficiencies]),
        compute_anchor=compute_anchor,
        not_told_apart=HIDDEN if _collectives_hidden(view) else "",
    )


def _collectives_hidden(view: RunView) -> bool:
    """Whether collectives run inside forward and backward, and no timer takes them out of it."""
    parallel = view.hello().get("parallel") or {}
    inside = bool(parallel.get("fsdp") or parallel.get("deepspeed"))
    return inside and view.world_size > 1 and not any(len(view.comm(rank)) for rank in view.ranks)


def _rank_budget(view: RunView, rank: int, straggling: float) -> RankBudget:
    split = split_of(view, rank)
    split, queued = _without_queueing(view, rank, _exposed(view, rank, split))
    late = round(split.comm * straggling)
    rank_efficiency = efficiency(view, rank)
    useful, overhead = _useful(split, rank_efficiency)
    lines = dict.fromkeys(LINES, 0) | {
        "useful_compute": useful,
        "compute_overhead": overhead,
        "data_stall": split.data + split.h2d,
        "host": split.host,
        "core_wait": queued,
        "communication": split.comm - late,
        "straggler_wait": late,
        "checkpoint": split.checkpoint,
        "eval": split.eval,
        "compile": split.compile,
        "other": split.set_up,
    }
    return RankBudget(
        rank, view.per_rank[rank].total_steps(), split.wall, lines, split.clock, rank_efficiency
    )


def _exposed(view: RunView, rank: int, split: WallSplit) -> WallSplit:
    """The split with all exposed waiting as communication; what DDP tells lies in backward."""
    inside = 0
    if len(view.comm(rank)):
        inside = round(hidden_wait_ms(view, rank) * 1e6 * view.per_rank[rank].total_steps())
    from_backward = min(inside, split.backward)
    from_forward = min(inside - from_backward, split.forward)
    comm = split.comm + from_backward + from_forward
    return replace(split.less(forward=from_forward, backward=from_backward), comm=comm)


def _without_queueing(view: RunView, rank: int, split: WallSplit) -> tuple[WallSplit, int]:
    """The split without the thread's waiting for a core, and that waiting in nanoseconds.

    It is spread over what the thread does itself as that takes time. Only what is more than all of
    that comes out of its waiting for worker processes or other ranks: at their end it may stand in
    the queue as well.
    """
    queue = run_queue(view, rank) if split.clock == "host" else None
    if queue is None:
        return split, 0
    workers = (view.hello(rank).get("dataloader") or {}).get("num_workers")
    waits = ("comm", "data") if workers else ("comm",)
    works = _WORK if workers else (*_WORK, "data")
    wanted = min(round(queue.value * split.wall), split.wall)
    queued_ns = _spread(split, works, wanted)
    queued_ns |= _spread(split, waits, wanted - sum(queued_ns.values()))
    remaining_ns = {name: getattr(split, name) - ns for name, ns in queued_ns.items()}
    return replace(split, **remaining_ns), sum(queued_ns.values())


def _spread(split: WallSplit, names: Sequence[str], wanted: int) -> dict[str, int]:
    """So much, at most all, of the parts of a split, of each as it takes time."""
    times = [int(getattr(split, name)) for name in names]
    taken = apportion(min(wanted, sum(times)), times)
    return {name: min(ns, out) for name, ns, out in zip(names, times, taken, strict=True)}


def _useful(split: WallSplit, efficiency: FlopsUtilization | None) -> tuple[int, int]:
    """Useful compute and overhead; together all of the compute."""
    compute = split.forward + split.backward + split.optimizer
    useful = round(compute * (1 - split.skipped))
    if efficiency is not None:
        useful = min(useful, round(1e9 * efficiency.seconds_at_peak))
    return useful, compute - useful


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
