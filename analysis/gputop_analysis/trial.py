"""What a few steps of a training showed: their time, what they held, what stopped them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gputop_agent import wire
from gputop_analysis.model import Finding
from gputop_analysis.raised import fatal
from gputop_analysis.series import RankSeries
from gputop_analysis.stages import rate_over_ranks
from gputop_analysis.summary import run_state, steps_done
from gputop_analysis.units import GIB
from gputop_analysis.view import RunView
from gputop_analysis.vram.from_run import setup_of, setup_of_hello
from gputop_analysis.vram.setup import Setup
from gputop_probes.record.reader import RunRecord

PHASES_OF_A_STEP = ("forward", "backward", "optimizer")
UNTIMED_STEPS = 2
"""The first steps allocate, compile and tune kernels."""


class Failure(NamedTuple):
    """The exception that ended the first rank; those of other ranks follow from it."""

    rank: int
    phase: str
    """As the phases of a step are called; ``other`` is outside of them all."""
    step: int
    kind: str
    """Class of the exception."""
    message: str
    site: str
    """The user's line."""
    module: str
    """Path and class of the module whose forward ran, where memory ran out; else empty."""
    out_of_memory: bool
    held_gib: dict[str, float]
    """What the device's memory was held for when it ran out; empty otherwise."""
    later_ranks: tuple[int, ...]


class Timing(NamedTuple):
    """Steps after the first two, of the rank whose median is the longest; milliseconds."""

    steps: int
    step_ms: float
    first_step_ms: float
    phases_ms: dict[str, float]
    tokens_per_s: float
    """Of all ranks together; 0 where batches have no tokens."""
    samples_per_s: float


class RankPeaks(NamedTuple):
    """Peaks of one rank, GiB; None where there is no device allocator."""

    rank: int
    allocated_gib: float | None
    reserved_gib: float | None
    rss_gib: float | None


@dataclass(frozen=True, slots=True)
class Trial:
    """A short run, judged."""

    steps: int
    """That every rank made."""
    world: int
    ranks: tuple[int, ...]
    """Those that made a step."""
    device: str
    failure: Failure | None
    timing: Timing | None
    held: tuple[RankPeaks, ...]
    layers: tuple[int, int] | None
    """Layers that ran, and of how many; None where the model was not cut."""
    not_cut: int = 0
    """Layers asked for that no model of transformers has; 0: none were, or it was cut."""
    exit_code: int | None = None
    critical: Finding | None = None
    """The worst the record says of it, if critical and not how the command ended."""
    doubt: str = ""
    """A loss that was no number and became one again."""
    setup: Setup | None = field(default=None, repr=False)
    """What it trains, at its whole depth; None where the model tells no architecture."""


def trial_of(record: RunRecord) -> Trial:
    """Judge a short run that has ended."""
    from gputop_analysis.report import Report

    view = RunView(record)
    findings = [finding for finding in Report(record).findings if finding.id != "HC09"]
    passing = [
        finding.title
        for finding in findings
        if finding.id == "NU01" and finding.severity != "critical"
    ]
    first = view.hello() or next(record.events("hello"), {})
    cut = first.get("dryrun") or {}
    if cut.get("layers") and cut.get("of"):
        layers = (int(cut["layers"]), int(cut["of"]))
    else:
        layers = None
    return Trial(
        steps=min((steps_done(record, rank) for rank in view.ranks), default=0),
        world=max(view.world_size, int(first.get("world_size") or 0)),
        ranks=tuple(view.ranks),
        device=str(first.get("device_name") or first.get("device") or ""),
        failure=_failure(record),
        timing=timing(view),
        held=held(view),
        layers=layers,
        not_cut=int(cut.get("layers") or 0) if layers is None else 0,
        exit_code=run_state(record, 0)[1],
        critical=next((finding for finding in findings if finding.severity == "critical"), None),
        doubt="".join(passing),
        setup=_whole(view, layers),
    )


def timing(view: RunView) -> Timing | None:
    """How long a step takes; None with fewer than three steps."""
    timed = {
        rank: np.asarray(series.rows[_counted(series)]) for rank, series in view.per_rank.items()
    }
    timed = {rank: rows for rank, rows in timed.items() if len(rows)}
    if not timed:
        return None
    medians = {
        rank: float(np.median(np.repeat(_per_step(rows, "wall"), rows["n_steps"])))
        for rank, rows in timed.items()
    }
    slowest = max(medians, key=lambda rank: medians[rank])
    rows = timed[slowest]
    count = int(rows["n_steps"].sum())
    seconds = float(rows["wall_ns"].sum()) / 1e9
    return Timing(
        steps=count,
        step_ms=medians[slowest],
        first_step_ms=float(view.per_rank[slowest].rows["wall_ns"][0]) / 1e6,
        phases_ms={name: float(rows[f"{name}_ns"].sum()) / 1e6 / count for name in wire.PHASES},
        tokens_per_s=_rate(view, timed.values(), "tokens", seconds),
        samples_per_s=_rate(view, timed.values(), "samples", seconds),
    )


def _rate(view: RunView, timed: Iterable[Any], column: str, seconds: float) -> float:
    return rate_over_ranks(view, [float(rows[column].sum()) / seconds for rows in timed])


def _counted(series: RankSeries) -> np.ndarray:
    rows = series.rows
    return (series.steps - series.n_steps + 1 >= UNTIMED_STEPS) & (
        (rows["flags"] & wire.F_UNSTEADY) == 0
    )


def _per_step(rows: Any, phase: str) -> np.ndarray:
    return rows[f"{phase}_ns"] / (1e6 * np.maximum(rows["n_steps"], 1))


def held(view: RunView) -> tuple[RankPeaks, ...]:
    """The peaks of each rank that made a step."""
    return tuple(_held(series) for series in view.per_rank.values() if len(series.rows))


def _held(series: RankSeries) -> RankPeaks:
    def peak(column: str) -> float | None:
        highest = int(series.rows[column].max())
        return highest / GIB if highest > 0 else None

    return RankPeaks(
        series.rank, peak("peak_allocated_bytes"), peak("reserved_bytes"), peak("rss_bytes")
    )


def _failure(record: RunRecord) -> Failure | None:
    raised = fatal(record)
    if not raised:
        return None
    first = raised[0]
    rank = int(first.get("rank") or 0)
    memory: Mapping[str, Any] = first.get("memory") or {}
    module = " ".join(filter(None, (first.get("module"), first.get("module_class"))))
    return Failure(
        rank=rank,
        phase=str(first.get("phase") or "other"),
        step=int(first.get("step") or 0),
        kind=str(first.get("class") or "exception"),
        message=_telling_line(str(first.get("message") or "")),
        site=str(first.get("site") or ""),
        module=module,
        out_of_memory="memory" in first or "out of memory" in str(first.get("message")).lower(),
        held_gib={
            name.removesuffix("_bytes"): size / GIB
            for name, size in memory.items()
            if size and size > 0
        },
        later_ranks=tuple(sorted({int(event.get("rank") or 0) for event in raised[1:]} - {rank})),
    )


def _telling_line(message: str) -> str:
    """The last line where a worker's traceback is quoted in the message, else the first."""
    lines = message.strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Caught ") else lines[0]


def _whole(view: RunView, layers: tuple[int, int] | None) -> Setup | None:
    setup = setup_of(view)
    if setup is None or layers is None:
        return setup
    hello = view.hello()
    model = hello["model"]
    config = {**(model.get("config") or {}), "layers": layers[1]}
    return setup_of_hello(
        {**hello, "model": {**model, "config": config}}, setup.accumulation, view.world_size
    )
