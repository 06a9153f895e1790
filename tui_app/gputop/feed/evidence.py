"""What is in the pictures that show a finding; which those are, the finding itself says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gputop.feed import listings, series
from gputop.feed.numerics import charts
from gputop.feed.plots import Bar, Bars, Chart, Plot, PlotLine
from gputop.feed.snapshot import Snapshot
from gputop.feed.window import window_of
from gputop_agent.wire import PHASES
from gputop_analysis.findings import CATALOGUE, pictures
from gputop_analysis.findings.families import family_of
from gputop_analysis.model import Finding
from gputop_analysis.numerics import numerics
from gputop_analysis.units import GIB
from gputop_analysis.view import RunView
from gputop_analysis.waits import Waits, waits
from gputop_probes.record.reader import RunRecord

BARS_AT_MOST = 32

Drawer = Callable[[RunView, Finding], Plot | None]


@dataclass(frozen=True, slots=True)
class FindingDetails:
    """What stands behind one finding."""

    finding: Finding
    plots: tuple[Plot, ...] = ()
    in_source: str = ""
    """What `gputop lint` says of the line that the finding names."""


@dataclass(frozen=True)
class EvidenceLoader:
    """Reads the evidence of one finding."""

    id: str
    rank: int | None

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> FindingDetails | None:
        finding = next(
            (f for f in snapshot.findings if (f.id, f.rank) == (self.id, self.rank)), None
        )
        if finding is None:
            return None
        spec = CATALOGUE[finding.id]
        view = RunView(
            record, None if family_of(spec.family).whole_run else window_of(record, snapshot)[0]
        )
        if view.ranks:
            pictures = [drawer(picture)(view, finding) for picture in spec.shown_by]
        else:
            pictures = []
        from gputop_analysis.lint import in_source  # parses sources: not before the first frame

        problem = in_source(finding.site, record.manifest.cwd)
        return FindingDetails(
            finding, tuple(plot for plot in pictures if plot is not None), problem
        )


def drawer(picture: pictures.Picture) -> Drawer:
    """What draws a picture."""
    if isinstance(picture, pictures.Phases):
        return phases(*picture.names)
    if isinstance(picture, pictures.StepColumn):
        return curve(*picture)
    if isinstance(picture, pictures.Reported):
        return reported(picture.series)
    if isinstance(picture, pictures.DeviceColumns):
        return device(*picture.columns)
    return _NAMED[picture.name]


# ---- where the time goes


def phases(*focus: str) -> Drawer:
    """The step, with these phases in colour."""

    def picture(view: RunView, finding: Finding) -> Plot | None:
        if finding.rank in view.per_rank and len(view.ranks) > 1:
            subject = f" of rank {finding.rank}"
        else:
            subject = ""
        return series.columns(
            view, finding.rank, f"{' and '.join(focus)} in each step{subject}", focus
        )

    return picture


def curve(title: str, unit: str, column: str, scale: float, per_step: bool = True) -> Drawer:
    """One column of the step records."""

    def picture(view: RunView, finding: Finding) -> Plot | None:
        def values(rows, counts):
            shown = np.where(rows[column] >= 0, rows[column] / scale, np.nan)
            return shown / counts if per_step else shown

        line = series.line(view, _rank(view, finding), title, values)
        if line.values:
            return Chart(title, unit, (line,), from_zero=True)
        return None

    return picture


def cpu_share(view: RunView, finding: Finding) -> Plot | None:
    """How much of its time the training thread really runs."""

    def values(rows, _counts):
        return np.where(
            rows["cpu_ns"] >= 0, 100 * rows["cpu_ns"] / np.maximum(rows["wall_ns"], 1), np.nan
        )

    line = series.line(view, _rank(view, finding), "CPU time of the training thread", values)
    if line.values:
        return Chart("training thread on a core", "% of the step", (line,), from_zero=True)
    return None


# ---- numerics


def reported(axis: str) -> Drawer:
    """The training's own words, jumps marked: loss, norm, learning rate, scale."""

    def picture(view: RunView, finding: Finding) -> Plot | None:
        data = numerics(view, _rank(view, finding))
        return charts(data).get(axis) if data is not None else None

    return picture


# ---- memory


def memory(view: RunView, finding: Finding) -> Plot | None:
    """What is allocated, or the resident set without a GPU, with the trend of its minima."""
    rank = _rank(view, finding)
    rows = view.per_rank[rank].rows
    if finding.id != "ME05" and len(rows) and (rows["allocated_bytes"] > 0).any():
        names = [
            ("reserved", "reserved_bytes", "reserved"),
            ("peak", "peak_allocated_bytes", "meter"),
        ]
        names.append(("allocated", "allocated_bytes", "allocated"))
    else:
        names = [("resident set", "rss_bytes", "allocated")]
    lines = []
    for name, column, style in names:
        lines.append(
            series.line(view, rank, name, lambda rows, _, c=column: _known(rows[c]) / GIB, style)
        )
    lines = [line for line in lines if line.values]
    trend = series.trend_line(lines[-1]) if lines else None
    if lines:
        return Chart(f"memory of rank {rank}", "GiB", (*lines, *([trend] if trend else [])))
    return None


def _known(column):
    return np.where(column > 0, column, np.nan)


# ---- ranks


def rank_waits(view: RunView, finding: Finding) -> Plot | None:
    """Each rank's own time and its wait: the rank that never waits is the one that holds up."""
    waited = waits(view)
    if waited is None:
        return None
    wait = np.asarray(np.median(waited.ms, axis=0))
    order = np.argsort(wait)[:BARS_AT_MOST]
    bars = []
    for i in order.tolist():
        rank = waited.ranks[i]
        steady = view.per_rank[rank].steady
        if steady.any():
            wall = float(np.median(view.per_rank[rank].wall_ms[steady]))
        else:
            wall = 0.0
        parts = ((max(wall - float(wait[i]), 0.0), "allocated"), (float(wait[i]), "wait"))
        bars.append(Bar(f"rank {rank}", parts, rank == finding.rank))
    shown = "each rank"
    if len(bars) < len(waited.ranks):
        shown = f"{len(bars)} of {len(waited.ranks):,} ranks, those that wait least"
    legend = (("own", "allocated"), ("waits for the others", "wait"))
    return Bars(f"median step of {shown}, by {waited.source}", "ms", legend, tuple(bars))


def slow_against_others(view: RunView, finding: Finding) -> Plot | None:
    """The slow rank's phases as the mean of its steps beside the median rank's."""
    if finding.rank not in view.per_rank or len(view.ranks) < 2:
        return None
    means = {r: _phase_means(view, r) for r in view.ranks[:: max(1, len(view.ranks) // 64)]}
    means[finding.rank] = _phase_means(view, finding.rank)
    other_ms = np.median([m for r, m in means.items() if r != finding.rank], axis=0)
    own_ms = means[finding.rank]
    if (waited := waits(view)) is not None and waited.backward_compute_ms is not None:
        own_ms, other_ms = _without_wait(own_ms, other_ms, waited, finding.rank)
    bars: list[Bar] = []
    for i, name in enumerate(PHASES):
        if max(own_ms[i], other_ms[i]) > 0.01 * own_ms.sum():
            stands_out = (
                own_ms[i] > 1.2 * other_ms[i] and own_ms[i] - other_ms[i] > 0.02 * own_ms.sum()
            )
            bars.append(
                Bar(name, ((float(own_ms[i]), "high" if stands_out else "allocated"),), stands_out)
            )
            bars.append(Bar("", ((float(other_ms[i]), "muted"),)))
    title = f"phases of rank {finding.rank} against the others"
    return Bars(
        title,
        "ms",
        ((f"rank {finding.rank}", "allocated"), ("median of the others", "muted")),
        tuple(bars),
    )


def _without_wait(own, others, waited: Waits, rank: int):
    """Backward as DDP's own timers have it: in the step it contains the wait for the others."""
    backward, at = waited.backward_compute_ms.mean(axis=0), PHASES.index("backward")  # type: ignore[union-attr]
    own, others, column = own.copy(), others.copy(), waited.ranks.index(rank)
    own[at], others[at] = backward[column], float(np.median(np.delete(backward, column)))
    return own, others


def _phase_means(view: RunView, rank: int):
    series = view.per_rank[rank]
    if series.steady.any():
        steady = series.steady
    else:
        steady = np.ones(len(series.rows), bool)
    steps = max(1, int(series.n_steps[steady].sum()))
    return np.array(
        [float(series.rows[f"{phase}_ns"][steady].sum()) / 1e6 / steps for phase in PHASES]
    )


# ---- devices


def device(*fields: tuple[str, str, str]) -> Drawer:
    """Samples of one GPU over time: ``(column, name, unit)``, all of one unit."""

    def picture(view: RunView, finding: Finding) -> Plot | None:
        lines: list[PlotLine] = []
        for name, host in view.record.hosts.items():
            if finding.host and name != finding.host:
                continue
            rows = np.asarray(host.gpu.rows[-20_000:])
            if finding.gpu is not None:
                gpus = [finding.gpu]
            else:
                gpus = np.unique(rows["index"]).tolist()[:4]
            styles = ("allocated", "good", "high", "medium")
            for index, style in zip(gpus, styles, strict=False):
                lines += _samples(rows[rows["index"] == index], int(index), style, fields)
        if lines:
            return Chart(fields[0][1], fields[0][2], tuple(lines), axis="s")
        return None

    return picture


def _samples(
    rows, index: int, style: str, fields: tuple[tuple[str, str, str], ...]
) -> list[PlotLine]:
    points = []
    for column, name, _ in fields:
        if column in (rows.dtype.names or ()) and np.isfinite(rows[column]).any():
            seconds = (rows["t_ns"] - rows["t_ns"][0]) / 1e9
            steps, values = series.extremes(seconds, rows[column])
            points.append(
                PlotLine(f"{name} of GPU {index}", steps, values, "muted" if points else style)
            )
    return points


def _rank(view: RunView, finding: Finding) -> int:
    return finding.rank if finding.rank in view.per_rank else view.ranks[0]


_NAMED: dict[str, Drawer] = {
    pictures.CPU_SHARE.name: cpu_share,
    pictures.MEMORY.name: memory,
    pictures.RANK_WAITS.name: rank_waits,
    pictures.SLOW_AGAINST_OTHERS.name: slow_against_others,
    pictures.STACKS.name: listings.stacks,
    pictures.TRACEBACK.name: listings.traceback,
    pictures.LAST_OUTPUT.name: listings.last_output,
}
