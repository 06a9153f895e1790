"""Splits windows of time into exclusive parts, and sums calls by name."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputop_analysis.traces import names as known
from gputop_analysis.traces.intervals import Intervals, merged
from gputop_analysis.traces.load import Spans, Times, Trace
from gputop_analysis.traces.model import Collective, Hot, Step
from gputop_analysis.units import NS_PER_MS

HOT = 15


def split(
    layers: dict[str, Intervals], rest_name: str, starts: Times, ends: Times
) -> dict[str, Times]:
    """Parts of each window ``[starts[k], ends[k])`` in ns: of a layer what no layer before it
    covers, then the rest.

    The parts of a window add up to its length exactly.
    """
    parts: dict[str, Times] = {}
    reached = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    before = np.zeros(len(starts), np.int64)
    for name, layer in layers.items():
        reached = merged(reached, layer)
        covered = reached.length_in(starts, ends)
        parts[name] = covered - before
        before = covered
    parts[rest_name] = ends - starts - before
    return parts


def step_windows(trace: Trace, track: int | None = None) -> tuple[list[str], Times, Times]:
    """The steps that the profiler marked, in order: their numbers, beginnings and ends.

    Args:
        trace: the trace.
        track: whose marks to take; None: of the thread that has most of them.
    """
    marks = trace.marks.at(trace.rows_named(trace.marks, lambda name: name.startswith(known.STEP)))
    if track is None and len(marks.tracks):
        track = int(np.bincount(marks.tracks).argmax())
    marks = marks.at(np.flatnonzero(marks.tracks == (-1 if track is None else track)))
    marks = marks.at(np.argsort(marks.starts, kind="stable"))
    numbers = [trace.names[name].removeprefix(known.STEP) for name in marks.names]
    return numbers, marks.starts, marks.ends


def steps_of(
    layers: dict[str, Intervals], rest_name: str, windows: tuple[list[str], Times, Times]
) -> tuple[Step, ...]:
    """Each step with its parts."""
    numbers, starts, ends = windows
    parts = split(layers, rest_name, starts, ends)
    return tuple(
        Step(
            number,
            _ms(ends[k] - starts[k]),
            {name: _ms(values[k]) for name, values in parts.items()},
        )
        for k, number in enumerate(numbers)
    )


def parts_of(
    layers: dict[str, Intervals], rest_name: str, start: int, end: int
) -> dict[str, float]:
    """The parts of one window, ms."""
    parts = split(layers, rest_name, np.array([start]), np.array([end]))
    return {name: _ms(values[0]) for name, values in parts.items()}


def collectives(trace: Trace, spans: Spans, compute: Intervals) -> tuple[Collective, ...]:
    """The communication in ``spans`` by name, the most exposed first."""
    exposed = spans.ends - spans.starts - compute.length_in(spans.starts, spans.ends)
    calls = []
    for name in np.unique(spans.names):
        rows = spans.names == name
        sizes = spans.sizes[rows]
        calls.append(
            Collective(
                name=trace.names[name].split("(")[0],
                operation=known.collective(trace.names[name]),
                count=int(rows.sum()),
                total_ms=_ms((spans.ends - spans.starts)[rows].sum()),
                exposed_ms=_ms(exposed[rows].sum()),
                bytes=int(sizes.sum()) if sizes.min() >= 0 else None,
            )
        )
    return tuple(sorted(calls, key=lambda call: (-call.exposed_ms, -call.total_ms)))


def hottest(trace: Trace, names: npt.NDArray[np.int32], times: Times) -> tuple[Hot, ...]:
    """The ``names[k]`` with the most of ``times[k]``, ns; their share is of all of it."""
    if not len(names):
        return ()
    counts = np.bincount(names, minlength=len(trace.names))
    totals = np.bincount(names, weights=times, minlength=len(trace.names))
    total_ns = totals.sum() or 1.0
    top = np.argsort(-totals, kind="stable")[:HOT]
    return tuple(
        Hot(
            trace.names[name],
            int(counts[name]),
            _ms(float(totals[name])),
            float(totals[name] / total_ns),
        )
        for name in top
        if totals[name] > 0
    )


def _ms(nanoseconds: float) -> float:
    return float(nanoseconds) / NS_PER_MS
