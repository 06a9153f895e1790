"""Work of a device, and why it did nothing: from kernels, copies and the launches on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from gputop_analysis.traces import names as known
from gputop_analysis.traces.intervals import Intervals, union
from gputop_analysis.traces.load import Spans, Trace
from gputop_analysis.traces.model import COMM, COMPUTE, COPY, HOST_WAIT, IDLE, KERNEL_WAIT, Lane
from gputop_analysis.traces.split import (
    collectives,
    hottest,
    parts_of,
    step_windows,
    steps_of,
)
from gputop_analysis.units import NS_PER_MS


def device_lanes(trace: Trace) -> list[Lane]:
    """One lane for each device that ran something, in the order of their numbers."""
    return [_lane(trace, device) for device in sorted(_devices(trace), key=str)]


def gpu_name(trace: Trace, number: int | None) -> str:
    """``GPU 0 NVIDIA A100``; ``GPU`` where events tell no number."""
    if number is None:
        return "GPU"
    return " ".join(filter(None, ("GPU", str(number), trace.device_names.get(number, ""))))


def _devices(trace: Trace) -> set[Any]:
    used = np.union1d(trace.kernels.tracks, trace.copies.tracks)
    return {trace.tracks[track][0] for track in used}


def _lane(trace: Trace, device: Any) -> Lane:
    on_device = np.array([track[0] == device for track in trace.tracks])
    kernels = trace.kernels.at(on_device[trace.kernels.tracks])
    copies = trace.copies.at(on_device[trace.copies.tracks])
    is_comm = trace.rows_named(kernels, known.is_comm_kernel)
    comm_calls = kernels.at(is_comm)
    compute = _union(kernels.at(~is_comm))
    comm = _union(comm_calls)
    layers = {COMPUTE: compute, COMM: comm, COPY: _union(copies)}
    pending = _pending(trace, kernels, copies)
    if pending is not None:
        layers[KERNEL_WAIT] = pending
    if pending is None:
        idle_name = IDLE
    else:
        idle_name = HOST_WAIT
    windows = step_windows(trace)
    start = min(
        int(part.min()) for part in (kernels.starts, copies.starts, windows[1]) if len(part)
    )
    end = max(int(part.max()) for part in (kernels.ends, copies.ends, windows[2]) if len(part))
    return Lane(
        name=gpu_name(trace, device),
        kind="device",
        wall_ms=(end - start) / NS_PER_MS,
        parts_ms=parts_of(layers, idle_name, start, end),
        communication_ms=float((comm.ends - comm.starts).sum()) / NS_PER_MS,
        collectives=collectives(trace, comm_calls, compute),
        hot=hottest(trace, kernels.names, kernels.ends - kernels.starts),
        steps=steps_of(layers, idle_name, windows),
    )


def _pending(trace: Trace, *work: Spans) -> Intervals | None:
    """Times at which something was launched and had not begun; None where the trace has no
    launches.

    A launch counts from the end of its call. All kernels of a graph share the one call that
    launched it.
    """
    rows = np.flatnonzero(trace.launches.links >= 0)
    if not len(rows):
        return None
    order = rows[np.argsort(trace.launches.links[rows], kind="stable")]
    ids, ends = trace.launches.links[order], trace.launches.ends[order]
    launched, begun = [], []
    for spans in work:
        index = np.minimum(np.searchsorted(ids, spans.links), len(ids) - 1)
        known_launch = ids[index] == spans.links
        launched.append(ends[index][known_launch])
        begun.append(spans.starts[known_launch])
    return union(np.concatenate(launched), np.concatenate(begun))


def _union(spans: Spans) -> Intervals:
    return union(spans.starts, spans.ends)
