"""Who waits for whom in the traces of several ranks.

All ranks of a collective end together, so that the one that came last is in it for the shortest:
what the others are in it for longer, they wait. Durations alone are compared, since clocks of
several hosts differ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gputop_analysis.traces import names as known
from gputop_analysis.traces.load import Trace

_NS_PER_MS = 1e6


class Waits(NamedTuple):
    """By rank, milliseconds."""

    waited: dict[int, float]
    caused: dict[int, float]
    """Waiting of the others, together, for this rank."""
    collectives: int
    """Those that were found on all ranks."""


def waits(traces: dict[int, Trace]) -> Waits:
    """Split the time in collectives that all ranks have, the k-th of a name on one being the k-th
    on another.
    """
    calls = {rank: _calls(trace) for rank, trace in traces.items()}
    ranks = sorted(calls)
    waited = dict.fromkeys(ranks, 0.0)
    caused = dict.fromkeys(ranks, 0.0)
    count = 0
    shared = set.intersection(*(set(one) for one in calls.values())) if calls else set()
    for name in sorted(shared):
        if len({len(calls[rank][name]) for rank in ranks}) > 1:
            continue
        lengths = np.stack([calls[rank][name] for rank in ranks])
        excess = lengths - lengths.min(axis=0)
        last = lengths.argmin(axis=0)
        count += lengths.shape[1]
        for row, rank in enumerate(ranks):
            waited[rank] += float(excess[row].sum()) / _NS_PER_MS
            caused[rank] += float(excess[:, last == row].sum()) / _NS_PER_MS
    return Waits(waited, caused, count)


def _calls(trace: Trace) -> dict[str, np.ndarray]:
    """Durations of the communication kernels by collective, in order of their beginnings; ns."""
    kernels = trace.kernels.at(trace.rows_named(trace.kernels, known.is_comm_kernel))
    if not len(kernels.starts):
        kernels = trace.marks.at(trace.rows_named(trace.marks, known.is_comm_mark))
    kernels = kernels.at(np.argsort(kernels.starts, kind="stable"))
    names = np.array([known.collective(trace.names[name]) for name in kernels.names], dtype=object)
    lengths = kernels.ends - kernels.starts
    return {str(name): lengths[names == name] for name in set(names)}
