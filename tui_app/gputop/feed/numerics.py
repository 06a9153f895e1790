"""What the Numerics screen shows: the training's own numbers as charts over one axis of steps."""

from __future__ import annotations

from dataclasses import dataclass

from gputop.feed.plots import Chart, MarkedStep, PlotLine, Trouble
from gputop.feed.series import extremes
from gputop.feed.snapshot import Snapshot
from gputop_analysis.numerics import Numerics, numerics
from gputop_analysis.spikes import NUMERIC, Instability, Spike, steps_named
from gputop_analysis.view import RunView
from gputop_probes.record.reader import RunRecord

MARKS_AT_MOST = 12
"""A chart: more could not be told apart."""
MARKS_APART = 60
"""Marks lie at least this part of the axis apart; of two closer ones the larger stays."""


@dataclass(frozen=True, slots=True)
class NumericsPageData:
    """One rank's numbers."""

    rank: int
    ranks: tuple[int, ...]
    charts: tuple[Chart, ...]
    steps: tuple[float, float]
    """The common axis."""
    trend: tuple[str, str] | None
    """Where the loss goes (``falling``, ``still``, ``rising``, ``unclear``), and by how much."""
    instabilities: tuple[str, ...]
    """Jumps of several quantities at once, each in one line."""
    spikes: tuple[str, ...]
    """The largest jumps of one quantity alone."""
    beside: str
    """The jumps of step time and memory, which are no trouble of the numbers, in one line."""


@dataclass(frozen=True)
class NumericsLoader:
    """Reads the numbers of one rank, of the first one where none is named."""

    rank: int | None = None

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> NumericsPageData | Trouble:
        view = RunView(record)
        data = numerics(view, self.rank)
        if data is None or not len(data.series):
            return Trouble("Known once a rank has trained its first step.")
        together = {id(spike) for event in data.instabilities for spike in event.spikes}
        alone = [spike for spike in data.spikes if id(spike) not in together]
        alone.sort(key=lambda spike: -spike.sigmas)
        return NumericsPageData(
            rank=data.rank,
            ranks=tuple(view.ranks),
            charts=tuple(charts(data).values()),
            steps=(float(data.series.first_step[0]), float(data.series.step[-1])),
            trend=_trend(data),
            instabilities=tuple(event.told() for event in reversed(data.instabilities)),
            spikes=tuple(spike.told() for spike in alone if spike.axis in NUMERIC)[:MARKS_AT_MOST],
            beside=_beside([spike for spike in alone if spike.axis not in NUMERIC]),
        )


def _beside(spikes: list[Spike]) -> str:
    """``only step time jumps: 813 ms at step 203, 753 ms at step 400; memory: ...``."""
    of_axis: dict[str, list[str]] = {}
    for spike in spikes[:MARKS_AT_MOST]:
        place = steps_named(spike.first_step, spike.step)
        of_axis.setdefault(spike.axis.replace("_", " "), []).append(f"{spike.label()} at {place}")
    first, *others = [(axis, ", ".join(jumps)) for axis, jumps in of_axis.items()] or [("", "")]
    if not first[0]:
        return ""
    more = "".join(f"; {axis}: {jumps}" for axis, jumps in others)
    return f"only {first[0]} jumps: {first[1]}{more}"


def charts(numerics: Numerics) -> dict[str, Chart]:
    """A chart for each quantity that was measured, by axis name."""
    series = numerics.series
    lines = {
        "loss": (
            "loss",
            "",
            "forward",
            [("largest", series.loss_max, "track"), ("loss", series.loss, "forward")],
        ),
        "grad_norm": (
            "gradient norm",
            "",
            "backward",
            [("gradient norm", series.grad_norm, "backward")],
        ),
        "lr": ("learning rate", "", "optimizer", [("learning rate", series.lr, "optimizer")]),
        "loss_scale": ("loss scale", "", "compile", [("loss scale", series.loss_scale, "compile")]),
        "step_time": ("step time", "ms", "data", [("step time", series.step_time_max_ms, "data")]),
        "memory": (
            f"memory {numerics.memory_of}",
            "GiB",
            "comm",
            [("memory", series.memory_gib, "comm")],
        ),
    }
    charts_ = {}
    for axis, (title, unit, _, parts) in lines.items():
        drawn = tuple(
            PlotLine(name, *extremes(series.step, values), style) for name, values, style in parts
        )
        drawn = tuple(line for line in drawn if line.values)
        if drawn:
            charts_[axis] = Chart(title, unit, drawn, _marks(numerics, axis))
    return charts_


def _marks(numerics: Numerics, axis: str) -> tuple[MarkedStep, ...]:
    """Instabilities on every axis, with a head where this one jumps; then its largest jumps."""
    apart = (numerics.series.step[-1] - numerics.series.first_step[0]) / MARKS_APART
    marks = [_of_event(event, axis) for event in numerics.instabilities[-MARKS_AT_MOST:]]
    for spike in sorted(
        (spike for spike in numerics.spikes if spike.axis == axis), key=lambda spike: -spike.sigmas
    )[:MARKS_AT_MOST]:
        if all(abs(mark.step - spike.step) > apart for mark in marks):
            marks.append(MarkedStep(spike.step, spike.label(), "high"))
    return tuple(sorted(marks, key=lambda mark: mark.step))


def _of_event(event: Instability, axis: str) -> MarkedStep:
    spike_ = next((spike for spike in event.spikes if spike.axis == axis), None)
    return MarkedStep(
        spike_.step if spike_ else event.last_step, spike_.label() if spike_ else None, "critical"
    )


def _trend(numerics: Numerics) -> tuple[str, str] | None:
    if numerics.trend is None:
        return None
    trend = numerics.trend
    words = (
        f"{trend.first_loss:.4g} → {trend.last_loss:.4g} over steps {trend.first_step:,} to "
        f"{trend.last_step:,}"
    )
    return trend.kind, f"{words} (Mann-Kendall p = {trend.p:.2g} on {trend.blocks} blocks)"
