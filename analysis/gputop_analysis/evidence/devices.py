"""How a device of a trace spent its time, by the definitions that TraceLens uses, so that figures
can be compared.

Counted is the work that the recording saw being launched, from the first of it to the last. Fills
(memset) are compute, a copy or communication is exposed where nothing before it in the order
compute, communication, copy runs.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gputop_analysis.traces import names as known
from gputop_analysis.traces.device import gpu_name
from gputop_analysis.traces.intervals import Intervals, merged, union
from gputop_analysis.traces.load import Spans, Trace
from gputop_analysis.units import NS_PER_MS

_FILL = re.compile(r"memset", re.IGNORECASE)
_COPY_KERNEL = re.compile(r"MEMORY_COPY_|__amd_rocclr_copyBuffer")


@dataclass(frozen=True, slots=True)
class TracedDevice:
    """A device of a trace, ms. Compute, exposed communication, copy and idle add up to all."""

    name: str
    busy_ms: float
    compute_ms: float
    communication_ms: float
    """Any, also beside compute."""
    exposed_communication_ms: float
    copy_ms: float
    """Beside neither compute nor communication."""
    idle_ms: float
    rank: int | None = None
    unlaunched_ms: float = 0.0
    """Work whose launch the recording did not see, left out of the others."""

    def as_data(self) -> dict[str, Any]:
        """The entry of ``evidence.devices``."""
        data = asdict(self)
        del data["rank"], data["unlaunched_ms"]
        return data


def devices(trace: Trace, rank: int | None = None) -> list[TracedDevice]:
    """The devices of a trace that ran something, by number."""
    used = np.union1d(trace.kernels.tracks, trace.copies.tracks)
    numbers = {trace.tracks[track][0] for track in used}
    busy_devices = []
    for number in sorted(numbers, key=str):
        device = _device(trace, number, rank)
        if device is not None:
            busy_devices.append(device)
    return busy_devices


def _device(trace: Trace, number: Any, rank: int | None) -> TracedDevice | None:
    on_device = np.array([track[0] == number for track in trace.tracks])
    kernels = trace.kernels.at(on_device[trace.kernels.tracks])
    copies = trace.copies.at(on_device[trace.copies.tracks])
    all_work = merged(_union(kernels), _union(copies))
    kernels, copies = _launched(trace, kernels), _launched(trace, copies)
    if not len(kernels.starts) + len(copies.starts):
        return None
    is_fill = trace.rows_named(copies, lambda name: _FILL.match(name) is not None)
    is_copy = trace.rows_named(kernels, lambda name: _COPY_KERNEL.match(name) is not None)
    is_comm = trace.rows_named(kernels, known.is_comm_kernel) & ~is_copy
    compute = merged(_union(kernels.at(~is_comm & ~is_copy)), _union(copies.at(is_fill)))
    communication = _union(kernels.at(is_comm))
    moved = merged(_union(copies.at(~is_fill)), _union(kernels.at(is_copy)))
    both = merged(compute, communication)
    busy = merged(both, moved)
    first = min(int(part.starts.min()) for part in (kernels, copies) if len(part.starts))
    last = max(int(part.ends.max()) for part in (kernels, copies) if len(part.ends))
    return TracedDevice(
        name=gpu_name(trace, number),
        busy_ms=_ms(busy),
        compute_ms=_ms(compute),
        communication_ms=_ms(communication),
        exposed_communication_ms=_ms(both) - _ms(compute),
        copy_ms=_ms(busy) - _ms(both),
        idle_ms=(last - first) / NS_PER_MS - _ms(busy),
        rank=rank,
        unlaunched_ms=max(0.0, _ms(merged(all_work, busy)) - _ms(busy)),
    )


def _launched(trace: Trace, spans: Spans) -> Spans:
    """Work that the recording saw being launched; all of it where it saw no launch at all."""
    launches = trace.launches.links[trace.launches.links >= 0]
    if not len(launches):
        return spans
    linked = np.isin(spans.links, launches)
    return spans.at(linked) if linked.any() else spans


def _union(spans: Spans) -> Intervals:
    return union(spans.starts, spans.ends)


def _ms(intervals: Intervals) -> float:
    return float((intervals.ends - intervals.starts).sum()) / NS_PER_MS
