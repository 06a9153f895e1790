"""What of a run is published: figures of now, points of the steps that are new, findings."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gputop.occasions import hang_of
from gputop.publish.gpu_points import GpuPoints
from gputop_agent import wire
from gputop_analysis.model import Finding, GpuSummary, HostSummary, RankSummary
from gputop_analysis.overview import RunSummary, Verdict
from gputop_analysis.units import GIB
from gputop_probes.record.layout import STEP_BYTES
from gputop_probes.record.reader import RunRecord

POINTS_AT_ONCE = 500
"""Points a rank in one reading, at most: more steps than that are means over several."""
OVER = ("ended", "lost")
"""States of a run of which no more will come."""


class Sample(NamedTuple):
    """One figure with its labels."""

    metric: str
    """A name of ``metrics.METRICS``."""
    value: float
    labels: dict[str, str]


class Point(NamedTuple):
    """What steps up to this one measured, by name: ``gputop/rank0/step_ms``."""

    step: int
    t_ns: int
    values: dict[str, float]


@dataclass(frozen=True)
class Reading:
    """A run at one moment."""

    name: str
    command: str
    state: str
    exit_code: int | None
    verdict: Verdict
    findings: tuple[Finding, ...]
    samples: tuple[Sample, ...]
    points: tuple[Point, ...]
    """Those since the reading before."""
    host: str = ""
    hang: str = ""
    """What a hang looks like; empty while there is none."""
    steps: int = 0
    started_ns: int = 0
    """Of the command, on the clock of the points."""
    ended_ns: int | None = None

    @property
    def over(self) -> bool:
        """Whether no more will come."""
        return self.state in OVER

    @property
    def failed(self) -> bool:
        """Whether it ended badly: by its exit code, or by going without an end."""
        return bool(self.exit_code) or self.state == "lost"


@dataclass
class Points:
    """Hands out each step of a record once."""

    record: RunRecord
    _done: dict[int, int] = field(default_factory=dict)
    _phases: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Those that a rank has had: of the others there would be charts of zeros."""

    def __post_init__(self) -> None:
        self._gpus = GpuPoints(self.record)

    def new(self) -> tuple[Point, ...]:
        """The points of all ranks since the last call, in the order of time."""
        points = [point for rank in self.record.ranks() for point in self._of_rank(rank)]
        points.sort(key=lambda point: point.t_ns)
        if points:
            ends_ns = np.array([point.t_ns for point in points], dtype=np.int64)
            for place, values in self._gpus.new(ends_ns):
                points[place].values.update(values)
        return tuple(points)

    def _of_rank(self, rank: int) -> Iterator[Point]:
        rows = self.record.steps(rank)
        first = self._done.get(rank, 0)
        self._done[rank] = len(rows)
        count = len(rows) - first
        if count <= 0:
            return
        edges = np.linspace(first, len(rows), min(count, POINTS_AT_ONCE) + 1).astype(int)
        for start, end in itertools.pairwise(edges):
            records = np.asarray(rows[start:end])
            phases = self._phases[rank]
            phases.update(phase for phase in wire.PHASES if records[f"{phase}_ns"].any())
            yield _point(rank, records, phases)


def _point(rank: int, rows: Any, phases: set[str]) -> Point:
    """The mean of some records of a rank, by step; of these phases."""
    steps = max(int(rows["n_steps"].sum()), 1)
    head = f"gputop/rank{rank}"
    values = {f"{head}/step_ms": float(rows["wall_ns"].sum()) / steps / 1e6}
    for phase in filter(phases.__contains__, wire.PHASES):
        values[f"{head}/{phase}_ms"] = float(rows[f"{phase}_ns"].sum()) / steps / 1e6
    for name in STEP_BYTES:
        if rows[name][-1] >= 0:
            values[f"{head}/{name.removesuffix('_bytes')}_gib"] = float(rows[name].max()) / GIB
    seconds = float(rows["wall_ns"].sum()) / 1e9
    for name in ("samples", "tokens"):
        if rows[name].any() and seconds > 0:
            values[f"{head}/{name}_per_s"] = float(rows[name].sum(dtype=np.float64)) / seconds
    for name in ("loss", "grad_norm", "lr"):
        finite = rows[name][np.isfinite(rows[name])]
        if len(finite):
            values[f"{head}/{name}"] = float(finite[-1])
    return Point(int(rows["step"][-1]), int(rows["t_end_ns"][-1]), values)


def measured(gpus: tuple[GpuSummary, ...]) -> Iterator[GpuSummary]:
    """Devices whose figures were not added to a recording for show."""
    return (gpu for gpu in gpus if not gpu.added)


def read(
    record: RunRecord, summary: RunSummary, findings: list[Finding], verdict: Verdict
) -> Reading:
    """The figures of a summary, without points."""
    name = record.path.name
    samples = tuple(_known(_samples(name, summary, findings)))
    return Reading(
        name=name,
        command=" ".join(record.manifest.command),
        state=summary.state,
        exit_code=summary.exit_code,
        verdict=verdict,
        findings=tuple(findings),
        samples=samples,
        points=(),
        host=next(iter(record.hosts), ""),
        hang=hang_of(record),
        steps=summary.steps,
        started_ns=summary.started_ns,
        ended_ns=summary.ended_ns,
    )


def _known(samples: Iterator[Sample]) -> Iterator[Sample]:
    return (sample for sample in samples if math.isfinite(sample.value))


def _samples(run: str, summary: RunSummary, findings: list[Finding]) -> Iterator[Sample]:
    labels = {"run": run}
    running = summary.state in ("running", "starting")
    yield Sample("gputop.run.active", float(running), labels)
    if summary.exit_code is not None:
        yield Sample("gputop.run.exit_code", float(summary.exit_code), labels)
    for rank in summary.ranks:
        yield from _of_rank(rank, _labels_of(rank, labels))
    for finding in findings:
        yield from _of_finding(finding, labels)
    if summary.state not in OVER:
        yield from _of_now(summary, labels)


def _labels_of(rank: RankSummary, whole: dict[str, str]) -> dict[str, str]:
    return {**whole, "rank": str(rank.rank), "host": rank.host}


def _of_now(summary: RunSummary, labels: dict[str, str]) -> Iterator[Sample]:
    """What is true only while the run goes on: who scrapes takes each figure for one of now."""
    yield Sample("gputop.step.rate", summary.steps_per_s, labels)
    if summary.samples_per_s:
        yield Sample("gputop.sample.rate", summary.samples_per_s, labels)
    if summary.tokens_per_s:
        yield Sample("gputop.token.rate", summary.tokens_per_s, labels)
    for rank in summary.ranks:
        yield from _memory_of(rank, _labels_of(rank, labels))
    for gpu in measured(summary.gpus):
        yield from _of_gpu(gpu, labels)
    for host in summary.hosts:
        yield from _of_host(host, {**labels, "host": host.host})


def _of_rank(rank: RankSummary, labels: dict[str, str]) -> Iterator[Sample]:
    yield Sample("gputop.step.count", float(rank.steps), labels)
    yield Sample("gputop.step.time", rank.step_time_mean_ms / 1e3, labels)
    yield Sample("gputop.wait.time", rank.wait_mean_ms / 1e3, labels)
    yield Sample("gputop.loss", rank.loss, labels)
    for phase, mean_ms in rank.phases_mean_ms.items():
        yield Sample("gputop.phase.time", mean_ms / 1e3, {**labels, "phase": phase})
    peak = rank.peak_allocated_gib * GIB
    yield Sample("gputop.memory.usage", peak, {**labels, "kind": "peak_allocated"})


def _memory_of(rank: RankSummary, labels: dict[str, str]) -> Iterator[Sample]:
    kinds = {
        "allocated": rank.allocated_gib,
        "reserved": rank.reserved_gib,
        "rss": rank.rss_gib,
    }
    for category, size_gib in kinds.items():
        yield Sample("gputop.memory.usage", size_gib * GIB, {**labels, "kind": category})


def _of_gpu(gpu: GpuSummary, whole: dict[str, str]) -> Iterator[Sample]:
    labels = {
        **whole,
        "hw.id": f"{gpu.host}:{gpu.index}",
        "hw.type": "gpu",
        "hw.name": gpu.name,
        "host": gpu.host,
        "gpu": str(gpu.index),
    }
    yield Sample("hw.gpu.utilization", gpu.util_pct / 100, labels)
    yield Sample("hw.gpu.memory.usage", gpu.memory_used_gib * GIB, labels)
    yield Sample("hw.gpu.memory.limit", gpu.memory_total_gib * GIB, labels)
    yield Sample("hw.power", gpu.power_w, labels)
    yield Sample("hw.temperature", gpu.temperature_c, labels)


def _of_host(host: HostSummary, labels: dict[str, str]) -> Iterator[Sample]:
    yield Sample("gputop.host.cpu", host.cpu_pct / 100, labels)
    yield Sample("gputop.host.memory", host.memory_used_gib * GIB, labels)


def _of_finding(finding: Finding, whole: dict[str, str]) -> Iterator[Sample]:
    labels = {
        **whole,
        "id": finding.id,
        "name": finding.name,
        "severity": finding.severity,
        "rank": "" if finding.rank is None else str(finding.rank),
        "site": finding.site or "",
    }
    yield Sample("gputop.finding", 1.0, labels)
    if finding.recoverable_ms_per_step is not None:
        yield Sample("gputop.finding.recoverable", finding.recoverable_ms_per_step / 1e3, labels)
