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
from gputop_analysis.units import NS_PER_MS


class RankWaits(NamedTuple):
    """By rank, milliseconds."""

    waited: dict[int, float]
    caused: dict[int, float]
    """Waiting of the others, together, for this rank."""
    each: dict[int, float]
    """The same for each of those that wait for it, in the mean."""
    by_operation: dict[str, float]
    """Waiting of all ranks together, by collective."""
    collectives: int
    """Those that were found on all ranks of their group."""


Key = tuple[str, str]
"""Process group and name of a collective."""


def waits(traces: dict[int, Trace]) -> RankWaits:
    """Split the time in collectives that all ranks of a group have, the k-th of a name in a group
    on one rank being the k-th on another.

    Where a trace does not tell the group, all ranks are taken for one.
    """
    calls = {rank: _calls(trace) for rank, trace in traces.items()}
    waited = dict.fromkeys(sorted(calls), 0.0)
    caused, by_rank = dict(waited), dict(waited)
    by_operation: dict[str, float] = {}
    count = 0
    for key in sorted({key for rank_calls in calls.values() for key in rank_calls}):
        ranks = [rank for rank in waited if key in calls[rank]]
        alike = len({len(calls[rank][key]) for rank in ranks}) == 1
        if len(ranks) < 2 or not alike or (not key[0] and len(ranks) < len(calls)):
            continue
        lengths = np.stack([calls[rank][key] for rank in ranks])
        excess = (lengths - lengths.min(axis=0)) / NS_PER_MS
        last = lengths.argmin(axis=0)
        count += lengths.shape[1]
        by_operation[key[1]] = by_operation.get(key[1], 0.0) + float(excess.sum())
        for row, rank in enumerate(ranks):
            waited[rank] += float(excess[row].sum())
            of_others = float(excess[:, last == row].sum())
            caused[rank] += of_others
            by_rank[rank] += of_others / (len(ranks) - 1)
    return RankWaits(waited, caused, by_rank, by_operation, count)


def _calls(trace: Trace) -> dict[Key, np.ndarray]:
    """Durations of the communication kernels by collective, in order of their beginnings; ns."""
    kernels = trace.kernels.at(trace.rows_named(trace.kernels, known.is_comm_kernel))
    if not len(kernels.starts):
        kernels = trace.marks.at(trace.rows_named(trace.marks, known.is_comm_mark))
    kernels = kernels.at(np.argsort(kernels.starts, kind="stable"))
    lengths = kernels.ends - kernels.starts
    rows: dict[Key, list[int]] = {}
    for row, (group, name) in enumerate(zip(kernels.groups, kernels.names, strict=True)):
        key = trace.groups[group], known.collective(trace.names[name])
        rows.setdefault(key, []).append(row)
    return {key: lengths[chosen] for key, chosen in rows.items()}
