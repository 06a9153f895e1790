"""What one change would do to a configuration: the step, its parts and the memory, computed anew for this very one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from gputop_analysis.planner import memory
from gputop_analysis.planner.choices import PARTS, SHARDING
from gputop_analysis.planner.cost import OPTIMIZER_BYTES, Cost, cost
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import RECOMPUTE, Layouts
from gputop_analysis.planner.rules import broken
from gputop_analysis.planner.search import Plan

GIB = 2.0**30
KINDS = ("precision", "checkpointing", "optimizer", "communication", "kernels", "schedule", "sharding", "batch")
FLASH_3 = ("Hopper",)
"""What FlashAttention-3's kernels are written for (arXiv:2407.08608)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change, alone; against the configuration as it is."""

    kind: str
    """One of ``KINDS``."""
    name: str
    step_s: float
    before_s: float
    device_total_gib: float
    before_gib: float
    fits: bool
    parts_s: dict[str, float]
    """Change of each part of the step that moves by over a thousandth of it."""
    rule: str = ""
    """The rule that the change breaks; then it cannot be run, and the figures are 0."""

    @property
    def step_pct(self) -> float:
        return 100 * (self.step_s / self.before_s - 1) if not self.rule else 0.0

    def to_json(self) -> dict[str, Any]:
        """Stable names with units."""
        known = not self.rule
        return {
            "kind": self.kind,
            "change": self.name,
            "step_time_s": self.step_s if known else None,
            "step_time_change_pct": self.step_pct if known else None,
            "device_total_gib": self.device_total_gib if known else None,
            "memory_change_gib": self.device_total_gib - self.before_gib if known else None,
            "fits": self.fits if known else None,
            "parts_change_s": self.parts_s,
            "breaks_rule": self.rule or None,
        }


@dataclass(frozen=True, slots=True)
class _Try:
    kind: str
    name: str
    job: Job
    layout: dict[str, Any]


def what_if(plan: Plan, index: int) -> tuple[Change, ...]:
    """Every optimisation that applies to the configuration at ``index``, each computed alone, by kind."""
    row = plan.layouts.row(index)
    tries = [one for each in _ALL for one in each(plan, row)]
    before = _Figures(plan, _Try("", "", plan.job, row))
    return tuple(sorted((_change(plan, one, before) for one in tries), key=lambda one: KINDS.index(one.kind)))


class _Figures:
    """Step and memory of one try."""

    def __init__(self, plan: Plan, one: _Try):
        layouts = Layouts.of(**one.layout)
        parts = cost(one.job, plan.cluster, layouts)
        self.seconds = float(plan.calibration.seconds(parts)[0])
        scale = self.seconds / float(parts.seconds[0])
        self.parts = {part.name: float(getattr(parts, part.name)[0]) * scale for part in fields(Cost)}
        self.bytes = float(memory.reserved_bytes(memory.allocated_bytes(one.job, layouts))[0])


def _change(plan: Plan, one: _Try, before: _Figures) -> Change:
    layouts = Layouts.of(**one.layout)
    if rules := broken(one.job, layouts, plan.cluster.gpus):
        return Change(one.kind, one.name, 0.0, before.seconds, 0.0, before.bytes / GIB, False, {}, rules[0].reason)
    after = _Figures(plan, one)
    moved = {part: after.parts[part] - before.parts[part] for part in PARTS}
    return Change(
        kind=one.kind,
        name=one.name,
        step_s=after.seconds,
        before_s=before.seconds,
        device_total_gib=after.bytes / GIB,
        before_gib=before.bytes / GIB,
        fits=after.bytes <= plan.cluster.device.usable_bytes,
        parts_s={part: delta for part, delta in moved.items() if abs(delta) > 1e-3 * before.seconds},
    )


def _precision(plan: Plan, row: dict[str, Any]) -> Iterator[_Try]:
    job, chip = plan.job, plan.cluster.device
    for dtype, said in (("bf16", "bf16 products"), ("fp8", "FP8 products")):
        if dtype != job.dtype and chip.peak_flops.get(dtype):
            yield _Try("precision", said, job.but(dtype=dtype), row)
    if job.habits.gradient_bytes == 4:
        yield _Try("precision", "gradients kept and reduced in bf16", job.but(gradient_bytes=2), row)


def _checkpointing(plan: Plan, row: dict[str, Any]) -> Iterator[_Try]:
    for kind, name in enumerate(RECOMPUTE):
        if kind != row["recompute"]:
            said = f"{name} recomputation" if kind else "no recomputation"
            yield _Try("checkpointing", said, plan.job, {**row, "recompute": kind})


def _optimizer(plan: Plan, row: dict[str, Any]) -> Iterator[_Try]:
    for name in ("adamw", *OPTIMIZER_BYTES):
        if name not in (plan.job.optimizer, "none"):
            yield _Try("optimizer", name, plan.job.but(optimizer=name), row)


def _communication(plan: Plan, row: dict[str, Any]) -> Iterator[_Try]:
    habits = plan.job.habits
    if row["dp"] * row["cp"] > 1 and row["zero"] < 3:
        off = habits.overlap_gradients
        said = "gradient reduction after the backward" if off else "gradient reduction behind the backward"
        yield _Try("communication", said, plan.job.but(overlap_gradients=not off), row)
    if row["tp"] > 1 and not habits.overlap_tensor_parallel:
        yield _Try(
            "communication", "tensor-parallel communication overlapped", plan.job.but(overlap_tensor_parallel=True), row
        )
    if row["tp"] > 1:
        other = not row["sequence_parallel"]
        said = "with sequence parallelism" if other else "without sequence parallelism"
        yield _Try("communication", said, plan.job, {**row, "sequence_parallel": other})


def _kernels(plan: Plan, row: dict[str, Any]) -> Iterator[_Try]:
    habits, job = plan.job.habits, plan.job
    for name, said in (
        ("fused_elementwise", "bias, dropout and activation"),
        ("fused_accumulation", "gradient accumulation in the product"),
        ("fused_loss", "cross-entropy"),
    ):
        on = getattr(habits, name)
        yield _Try("kernels", f"{'unfused' if on else 'fused'} {said}", job.but(**{name: not on}), row)
    if habits.attention != "eager":
        yield _Try("kernels", "eager attention", job.but(attention="eager"), row)
    if habits.attention == "flash" and plan.cluster.device.architecture in FLASH_3:
        yield _Try("kernels", "FlashAttention-3", job.but(attention="flash-3"), row)


def _schedule(plan: Plan, row: dict[str, Any]) -> Iterator[_Try]:
    if row["pp"] == 1:
        return
    chunks = [n for n in (1, 2, 4, 8) if plan.job.model.layers % (row["pp"] * n) == 0 and n != row["vpp"]]
    for n in chunks:
        yield _Try("schedule", f"{n} chunks a stage" if n > 1 else "1F1B, not interleaved", plan.job, {**row, "vpp": n})
    said = "without zero-bubble" if row["zero_bubble"] else "zero-bubble (ZB-H1)"
    yield _Try("schedule", said, plan.job, {**row, "zero_bubble": not row["zero_bubble"]})


def _sharding(plan: Plan, row: dict[str, Any]) -> Iterator[_Try]:
    for stage in (0, 1, 3):
        if stage != row["zero"] and row["dp"] * row["cp"] > 1:
            yield _Try("sharding", SHARDING[stage], plan.job, {**row, "zero": stage})


def _batch(plan: Plan, row: dict[str, Any]) -> Iterator[_Try]:
    most = plan.job.global_batch // int(row["dp"])
    for size in (row["micro_batch"] * 2, row["micro_batch"] // 2):
        if 1 <= size <= most and most % size == 0:
            yield _Try("batch", f"micro-batch {size}", plan.job, {**row, "micro_batch": size})


_ALL = (_precision, _checkpointing, _optimizer, _communication, _kernels, _schedule, _sharding, _batch)
