"""What a change does to a configuration: step, parts and memory, computed anew for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gputop_analysis.parallelism.split import RECOMPUTES
from gputop_analysis.planner import memory
from gputop_analysis.planner.calibrate import Calibration
from gputop_analysis.planner.choices import PARTS, SHARDING
from gputop_analysis.planner.cost import OPTIMIZER_BYTES, cost
from gputop_analysis.planner.hardware import Cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.layout import Layouts
from gputop_analysis.planner.rules import broken
from gputop_analysis.planner.search import Plan
from gputop_analysis.units import GIB

KINDS = (
    "precision",
    "checkpointing",
    "optimizer",
    "communication",
    "kernels",
    "schedule",
    "sharding",
    "batch",
)
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
        if not self.rule:
            return 100 * (self.step_s / self.before_s - 1)
        return 0.0

    def to_json(self) -> dict[str, Any]:
        """Stable names with units."""
        is_possible = not self.rule
        return {
            "kind": self.kind,
            "change": self.name,
            "step_time_s": self.step_s if is_possible else None,
            "step_time_change_pct": self.step_pct if is_possible else None,
            "device_total_gib": self.device_total_gib if is_possible else None,
            "memory_change_gib": self.device_total_gib - self.before_gib if is_possible else None,
            "fits": self.fits if is_possible else None,
            "parts_change_s": self.parts_s,
            "breaks_rule": self.rule or None,
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """One configuration that is changed: of a plan, or a run as it is."""

    job: Job
    cluster: Cluster
    layout: dict[str, Any]
    calibration: Calibration = field(default_factory=Calibration)
    measured_s: float = 0.0
    """Its step, where it was measured: then what is predicted is the ratio to it."""
    measured_gib: float = 0.0
    """The same of its peak, as the driver counts it."""


@dataclass(frozen=True, slots=True)
class _Try:
    kind: str
    name: str
    job: Job
    layout: dict[str, Any]


def what_if(plan: Plan, index: int) -> tuple[Change, ...]:
    """Every optimisation for the configuration at ``index``, each computed alone, by kind."""
    return changes(Subject(plan.job, plan.cluster, plan.layouts.row(index), plan.calibration))


def changes(subject: Subject) -> tuple[Change, ...]:
    """The same for a configuration without a plan around it."""
    unchanged = _Try("", "", subject.job, subject.layout)
    tries = [
        attempt
        for family_of_changes in _ALL
        for attempt in family_of_changes(subject, subject.layout)
    ]
    rules = [
        broken(attempt.job, Layouts.of(**attempt.layout), subject.cluster.gpus) for attempt in tries
    ]
    before, *able = _figures(
        subject,
        [unchanged, *(attempt for attempt, rule in zip(tries, rules, strict=True) if not rule)],
    )
    after = iter(able)
    judged: list[Change] = []
    for attempt, rule in zip(tries, rules, strict=True):
        if rule:
            judged.append(_barred(subject, attempt, before, rule[0][1]))
        else:
            judged.append(_change(subject, attempt, before, next(after)))
    return tuple(sorted(judged, key=lambda change: KINDS.index(change.kind)))


@dataclass(frozen=True, slots=True)
class _Figures:
    """Step, its parts and memory of one try."""

    seconds: float
    parts: dict[str, float]
    bytes: float


def _figures(subject: Subject, tries: list[_Try]) -> list[_Figures]:
    """Of each; the same trainings are predicted together: ten take as long as one."""
    figures: dict[int, _Figures] = {}
    for job in dict.fromkeys(attempt.job for attempt in tries):
        indices = [i for i, attempt in enumerate(tries) if attempt.job == job]
        layouts = Layouts.of(
            **{name: [tries[i].layout[name] for i in indices] for name in subject.layout}
        )
        figures |= zip(indices, _of_job(subject, job, layouts), strict=True)
    return [figures[i] for i in range(len(tries))]


def _of_job(subject: Subject, job: Job, layouts: Layouts) -> Iterator[_Figures]:
    by = subject.calibration
    parts = by.with_input(cost(job, subject.cluster, layouts), job.global_batch / layouts.dp)
    seconds = by.seconds(parts)
    device_bytes = memory.sizes(job, layouts, by.memory_factor).device
    scale = seconds / parts.seconds
    columns = {name: (getattr(parts, name) * scale).tolist() for name in PARTS}
    for i, (step_s, size) in enumerate(zip(seconds.tolist(), device_bytes.tolist(), strict=True)):
        yield _Figures(step_s, {name: columns[name][i] for name in PARTS}, size)


def _barred(subject: Subject, attempt: _Try, before: _Figures, rule: str) -> Change:
    before_s, before_gib = _now(subject, before)
    return Change(attempt.kind, attempt.name, 0.0, before_s, 0.0, before_gib, False, {}, rule)


def _change(subject: Subject, attempt: _Try, before: _Figures, after: _Figures) -> Change:
    before_s, before_gib = _now(subject, before)
    scale = before_s / before.seconds
    total_gib = after.bytes / GIB + before_gib - before.bytes / GIB
    moved = {part: (after.parts[part] - before.parts[part]) * scale for part in PARTS}
    return Change(
        kind=attempt.kind,
        name=attempt.name,
        step_s=after.seconds * scale,
        before_s=before_s,
        device_total_gib=total_gib,
        before_gib=before_gib,
        fits=total_gib * GIB <= subject.cluster.device.usable_bytes,
        parts_s={part: delta for part, delta in moved.items() if abs(delta) > 1e-3 * before_s},
    )


def _now(subject: Subject, before: _Figures) -> tuple[float, float]:
    """Seconds and GiB as they are: measured where they were."""
    return subject.measured_s or before.seconds, subject.measured_gib or before.bytes / GIB


def _precision(on: Subject, row: dict[str, Any]) -> Iterator[_Try]:
    job, chip = on.job, on.cluster.device
    for dtype, label in (("bf16", "bf16 products"), ("fp8", "FP8 products")):
        if dtype != job.dtype and chip.spec.dense_flops.get(dtype):
            yield _Try("precision", label, job.but(dtype=dtype), row)
    if job.habits.gradient_bytes == 4:
        yield _Try(
            "precision", "gradients kept and reduced in bf16", job.but(gradient_bytes=2), row
        )


def _checkpointing(on: Subject, row: dict[str, Any]) -> Iterator[_Try]:
    for recompute, name in enumerate(RECOMPUTES):
        if recompute != row["recompute"]:
            label = "no recomputation"
            if recompute:
                label = f"{name} recomputation"
            yield _Try("checkpointing", label, on.job, {**row, "recompute": recompute})


def _optimizer(on: Subject, row: dict[str, Any]) -> Iterator[_Try]:
    for name in ("adamw", *OPTIMIZER_BYTES):
        if name not in (on.job.optimizer, "none"):
            yield _Try("optimizer", name, on.job.but(optimizer=name), row)


def _communication(on: Subject, row: dict[str, Any]) -> Iterator[_Try]:
    habits = on.job.habits
    if row["dp"] * row["cp"] > 1 and row["zero"] < 3:
        off = habits.overlap_gradients
        if off:
            label = "gradient reduction after the backward"
        else:
            label = "gradient reduction behind the backward"
        yield _Try("communication", label, on.job.but(overlap_gradients=not off), row)
    if row["tp"] > 1 and not habits.overlap_tensor_parallel:
        yield _Try(
            "communication",
            "tensor-parallel communication overlapped",
            on.job.but(overlap_tensor_parallel=True),
            row,
        )
    if row["ep"] > 1 and not habits.overlap_expert_parallel:
        label = "all-to-all of experts overlapped"
        yield _Try("communication", label, on.job.but(overlap_expert_parallel=True), row)
    if row["tp"] > 1:
        other = not row["sequence_parallel"]
        label = "without sequence parallelism"
        if other:
            label = "with sequence parallelism"
        yield _Try("communication", label, on.job, {**row, "sequence_parallel": other})


def _kernels(on: Subject, row: dict[str, Any]) -> Iterator[_Try]:
    habits, job = on.job.habits, on.job
    for name, label in (
        ("fused_elementwise", "bias, dropout and activation"),
        ("fused_accumulation", "gradient accumulation"),
        ("fused_loss", "cross-entropy"),
    ):
        is_fused = getattr(habits, name)
        yield _Try(
            "kernels",
            f"{'unfused' if is_fused else 'fused'} {label}",
            job.but(**{name: not is_fused}),
            row,
        )
    if habits.attention != "eager":
        yield _Try("kernels", "eager attention", job.but(attention="eager"), row)
    if habits.attention == "flash" and on.cluster.device.spec.architecture in FLASH_3:
        yield _Try("kernels", "FlashAttention-3", job.but(attention="flash-3"), row)


def _schedule(on: Subject, row: dict[str, Any]) -> Iterator[_Try]:
    if row["pp"] == 1:
        return
    chunks = [
        count
        for count in (1, 2, 4, 8)
        if on.job.model.layers % (row["pp"] * count) == 0 and count != row["vpp"]
    ]
    for count in chunks:
        yield _Try(
            "schedule",
            f"{count} chunks a stage" if count > 1 else "1F1B, not interleaved",
            on.job,
            {**row, "vpp": count},
        )
    label = "zero-bubble (ZB-H1)"
    if row["zero_bubble"]:
        label = "without zero-bubble"
    yield _Try("schedule", label, on.job, {**row, "zero_bubble": not row["zero_bubble"]})


def _sharding(on: Subject, row: dict[str, Any]) -> Iterator[_Try]:
    for stage in SHARDING:
        if stage != row["zero"] and row["dp"] * row["cp"] > 1:
            yield _Try("sharding", SHARDING[stage], on.job, {**row, "zero": stage, "replicas": 1})
    nodes = on.cluster.gpus // on.cluster.gpus_per_node
    if (
        row["pp"] == 1
        and nodes > 1
        and row["dp"] % nodes == 0
        and row["replicas"] != nodes
        and row["dp"] > nodes
    ):
        yield _Try(
            "sharding", "HSDP, a copy on each node", on.job, {**row, "zero": 3, "replicas": nodes}
        )


def _batch(on: Subject, row: dict[str, Any]) -> Iterator[_Try]:
    largest_batch = on.job.global_batch // int(row["dp"])
    for size in (row["micro_batch"] * 2, row["micro_batch"] // 2):
        if 1 <= size <= largest_batch and largest_batch % size == 0:
            yield _Try("batch", f"micro-batch {size}", on.job, {**row, "micro_batch": size})


_ALL = (
    _precision,
    _checkpointing,
    _optimizer,
    _communication,
    _kernels,
    _schedule,
    _sharding,
    _batch,
)
