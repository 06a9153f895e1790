"""Which ranks a live evaluation looks at when there are hundreds: those that stand out, and some
for comparison.

A finished run's report looks at all of them.
"""

from __future__ import annotations

import numpy as np

from gputop_agent.wire import F_NONFINITE
from gputop_analysis.view import Array
from gputop_probes.record.reader import RunRecord

ALL_UP_TO = 32
CHOSEN = 16
TAIL_RECORDS = 32
TOLD = 4
"""Ranks at most that are looked at for a loss that is no number, or for what they told."""
_COLUMNS = (
    "data_ns",
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "comm_ns",
    "other_ns",
    "gc_ns",
    "wall_ns",
)


def live_ranks(record: RunRecord) -> list[int]:
    """All ranks up to 32; of more, 16: extremes of the newest records by phase, wait and memory,
    others spread evenly; and a few with a loss that is no number.

    The spread ones are the same each time, so that findings about them neither come nor go with the
    choice.
    """
    ranks = record.ranks()
    if len(ranks) <= ALL_UP_TO:
        return ranks
    spread = np.linspace(0, len(ranks) - 1, CHOSEN // 2).astype(int).tolist()
    tails = [record.steps(rank)[-TAIL_RECORDS:] for rank in ranks]
    edges = np.concatenate([[0], np.cumsum([len(tail) for tail in tails])[:-1]])
    rows = _joined(tails)
    extremes = _extremes(rows, edges, _waits(record, ranks))
    positions = list(dict.fromkeys([*spread, *extremes]))
    chosen = [ranks[position] for position in positions[:CHOSEN]]
    is_bad = np.maximum.reduceat(rows["flags"] & F_NONFINITE, edges) != 0
    bad = [ranks[position] for position in np.flatnonzero(is_bad)[:TOLD]]
    return sorted({*chosen, *bad, *told_ranks(record)})


def told_ranks(record: RunRecord) -> list[int]:
    """The first ranks that told of a loss that is no number, or of an exception."""
    steps = set(record.ranks())
    tellers = (event.get("rank") for event in record.events("nonfinite", "exception"))
    return list(dict.fromkeys(rank for rank in tellers if rank in steps))[:TOLD]


def _extremes(rows: Array, edges: Array, waits: Array) -> list[int]:
    """Places of the ranks with the least wait, the most memory and the most of each phase.

    Args:
        rows: the newest records of all ranks, one after the other.
        edges: where those of each begin.
        waits: ns a step of each.
    """
    steps = np.add.reduceat(np.maximum(rows["n_steps"].astype(np.int64), 1), edges)
    means = {name: np.add.reduceat(rows[name], edges) / steps for name in _COLUMNS}
    own_ns = means["wall_ns"] - means["comm_ns"] - waits
    means["backward_ns"] = means["backward_ns"] - waits
    order = [own_ns, means["data_ns"], means["other_ns"], means["forward_ns"], means["backward_ns"]]
    order += [np.maximum.reduceat(rows["rss_bytes"], edges), means["gc_ns"], means["optimizer_ns"]]
    return [int(np.argmax(values)) for values in order]


def _waits(record: RunRecord, ranks: list[int]) -> Array:
    """Mean exposed wait of the newest records; 0 for all where one rank has none."""
    tails = [record.comm(rank)[-8:] for rank in ranks]
    if any(len(tail) == 0 for tail in tails):
        return np.zeros(len(ranks))
    counts = np.array([len(tail) for tail in tails])
    edges = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.add.reduceat(_joined(tails)["wait_ns"], edges) / counts


def _joined(tails: list[Array]) -> Array:
    """Joined in order; ``np.concatenate`` compares columns pair by pair and takes far longer."""
    return np.frombuffer(b"".join(tail.tobytes() for tail in tails), tails[0].dtype)
