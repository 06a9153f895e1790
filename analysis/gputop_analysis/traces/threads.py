"""Work of a training thread in a trace without device: operators, collectives, the rest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gputop_analysis.traces import names as known
from gputop_analysis.traces.intervals import self_times, union, without
from gputop_analysis.traces.load import Trace
from gputop_analysis.traces.model import COMM, COMPUTE, HOST, Hot, Lane
from gputop_analysis.traces.split import (
    collectives,
    hottest,
    parts_of,
    step_windows,
    steps_of,
)
from gputop_analysis.units import NS_PER_MS

_BACKWARD = "autograd::engine::evaluate_function"
_UPDATE = "Optimizer.step#"


def thread_lanes(trace: Trace) -> list[Lane]:
    """One lane for each thread that trains."""
    return [_lane(trace, track) for track in _training_tracks(trace)]


def host_operators(trace: Trace) -> tuple[Hot, ...]:
    """Operators of all threads by self time."""
    self_ns = np.zeros(len(trace.ops.starts), np.int64)
    for track in np.unique(trace.ops.tracks):
        rows = np.flatnonzero(trace.ops.tracks == track)
        self_ns[rows] = self_times(trace.ops.starts[rows], trace.ops.ends[rows])
    return hottest(trace, trace.ops.names, self_ns)


def _training_tracks(trace: Trace) -> list[int]:
    """Threads with a backward or an update, else that of most operators, else marked steps."""
    backward = trace.ops.tracks[
        trace.rows_named(trace.ops, lambda name: name.startswith(_BACKWARD))
    ]
    update = trace.marks.tracks[
        trace.rows_named(trace.marks, lambda name: name.startswith(_UPDATE))
    ]
    tracks = np.union1d(backward, update)
    if len(tracks):
        return [int(track) for track in tracks]
    if len(trace.ops.tracks):
        return [int(np.bincount(trace.ops.tracks).argmax())]
    return [int(track) for track in np.unique(trace.marks.tracks)[:1]]


def _lane(trace: Trace, track: int) -> Lane:
    pid = trace.tracks[track][0]
    ops = trace.ops.at(trace.ops.tracks == track)
    is_comm = trace.rows_named(ops, known.is_comm_op)
    waiting = union(ops.starts[is_comm], ops.ends[is_comm])
    compute = without(union(ops.starts[~is_comm], ops.ends[~is_comm]), waiting)
    calls = trace.marks.at(
        _of_process(trace, pid) & trace.rows_named(trace.marks, known.is_comm_mark)
    )
    comm = union(calls.starts, calls.ends)
    layers = {COMPUTE: compute, COMM: comm}
    windows = step_windows(trace, track)
    track_marks = trace.marks.at(trace.marks.tracks == track)
    edges = []
    for part in (
        ops.starts,
        ops.ends,
        calls.starts,
        calls.ends,
        track_marks.starts,
        track_marks.ends,
    ):
        if len(part):
            edges.append(part)
    start, end = min(int(p.min()) for p in edges), max(int(p.max()) for p in edges)
    return Lane(
        name=_name(trace, track),
        kind="thread",
        wall_ms=(end - start) / NS_PER_MS,
        parts_ms=parts_of(layers, HOST, start, end),
        communication_ms=float((comm.ends - comm.starts).sum()) / NS_PER_MS,
        collectives=collectives(trace, calls, compute),
        hot=hottest(trace, ops.names, self_times(ops.starts, ops.ends)),
        steps=steps_of(layers, HOST, windows),
    )


def _name(trace: Trace, track: int) -> str:
    name = trace.thread_names.get(trace.tracks[track], "").removesuffix(" ()")
    return name or f"thread {trace.tracks[track][1]}"


def _of_process(trace: Trace, pid: object) -> npt.NDArray[np.bool_]:
    same = np.array([track[0] == pid for track in trace.tracks])
    if len(same):
        return same[trace.marks.tracks]
    return np.zeros(0, bool)
