"""Pipeline bubbles in the traces of several ranks: the time in which a rank sends or receives and
computes nothing. NCCL's kernel runs from the call on, so it contains the waiting for the neighbour.

NCCL runs the same kernel for an all-to-all, as experts and sharded tables have it. Which it was the
host's calls tell.
"""

from __future__ import annotations

import re

import numpy as np

from gputop_analysis.traces import names as known
from gputop_analysis.traces.intervals import Intervals, union, without
from gputop_analysis.traces.load import Spans, Trace

_MESSAGES = frozenset(("send_recv", "send", "recv"))
_SENT = re.compile(r"(?:nccl:|c10d::)(?:batch_)?i?(?:send|recv)", re.IGNORECASE)
_EXCHANGED = re.compile(r"all_?to_?all", re.IGNORECASE)


def bubbles(traces: dict[int, Trace]) -> dict[int, float]:
    """Share of its time by rank, 0 to 1; empty where fewer than two ranks send or receive."""
    shares = {rank: _share(trace) for rank, trace in traces.items() if not _only_exchanges(trace)}
    known_shares = {rank: share for rank, share in shares.items() if share is not None}
    return known_shares if len(known_shares) > 1 else {}


def are_sure(traces: dict[int, Trace]) -> bool:
    """Whether the host's calls say that messages were sent."""
    return any(_SENT.match(name) for trace in traces.values() for name in trace.names)


def _only_exchanges(trace: Trace) -> bool:
    exchanged = any(_EXCHANGED.search(name) for name in trace.names)
    return exchanged and not any(_SENT.match(name) for name in trace.names)


def _share(trace: Trace) -> float | None:
    kernels = trace.kernels
    is_message = trace.rows_named(kernels, lambda name: known.collective(name) in _MESSAGES)
    is_message &= trace.rows_named(kernels, known.is_comm_kernel)
    if not is_message.any():
        return None
    is_comm = trace.rows_named(kernels, known.is_comm_kernel)
    waiting = without(_union(kernels.at(is_message)), _union(kernels.at(~is_comm)))
    window = int(kernels.ends.max()) - int(kernels.starts.min())
    if window > 0:
        return float(np.sum(waiting.ends - waiting.starts)) / window
    return None


def _union(spans: Spans) -> Intervals:
    return union(spans.starts, spans.ends)
