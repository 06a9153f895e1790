"""Summary of a trace beside its lanes: attention, waiting calls, the place in the job."""

from __future__ import annotations

import numpy as np

from gputop_analysis.traces import names as known
from gputop_analysis.traces.load import Trace
from gputop_analysis.traces.model import TracedCall
from gputop_analysis.units import NS_PER_MS

_WAITING = ("Synchronize", "cudaMemcpy", "hipMemcpy")
_SHOWN_CALLS = 8


def attention_calls(trace: Trace) -> dict[str, int]:
    """Calls of scaled dot product attention by implementation."""
    counts = []
    if len(trace.names):
        counts = np.bincount(trace.ops.names, minlength=len(trace.names))
    calls: dict[str, int] = {}
    for name, count in zip(trace.names, counts, strict=True):
        if name in known.ATTENTION and count:
            backend = known.ATTENTION[name]
            calls[backend] = calls.get(backend, 0) + int(count)
    return calls


def waiting_calls(trace: Trace) -> tuple[TracedCall, ...]:
    """Runtime calls in which a host thread waits for the device, the longest first."""
    launches = trace.launches
    calls = []
    for name in np.unique(launches.names):
        text = trace.names[name]
        if any(word in text for word in _WAITING) and not text.endswith("Async"):
            rows = launches.names == name
            total = float((launches.ends - launches.starts)[rows].sum()) / NS_PER_MS
            calls.append(TracedCall(text, int(rows.sum()), total))
    return tuple(sorted(calls, key=lambda call: -call.total_ms)[:_SHOWN_CALLS])


def distributed_info(trace: Trace) -> tuple[int | None, int | None]:
    """(rank, world size) as torch.distributed had told the profiler."""
    info = trace.header.get("distributedInfo")
    if not isinstance(info, dict):
        return None, None
    rank, world = info.get("rank"), info.get("world_size")
    return (rank if isinstance(rank, int) else None, world if isinstance(world, int) else None)
