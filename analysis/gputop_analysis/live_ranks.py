"""Which ranks a live evaluation looks at when there are hundreds: those that stand out, and some
for comparison.

A finished run's report looks at all of them.
"""

from __future__ import annotations

import numpy as np

from gputop_analysis.view import Array
from gputop_probes.record.reader import RunRecord

ALL_UP_TO = 32
CHOSEN = 16
TAIL_RECORDS = 32
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
    others spread evenly.

    The spread ones are the same each time, so that findings about them neither come nor go with the
    choice.
    """
    ranks = record.ranks()
    if len(ranks) <= ALL_UP_TO:
        return ranks
    spread = np.linspace(0, len(ranks) - 1, CHOSEN // 2).astype(int).tolist()
    chosen = list(dict.fromkeys([*spread, *_extremes(record, ranks)]))
    return [ranks[i] for i in sorted(chosen[:CHOSEN])]


def _extremes(record: RunRecord, ranks: list[int]) -> list[int]:
    """Places in ``ranks`` of the least wait, the most memory and the most of each phase."""
    tails = [record.steps(rank)[-TAIL_RECORDS:] for rank in ranks]
    edges = np.concatenate([[0], np.cumsum([len(tail) for tail in tails])[:-1]])
    rows = _joined(tails)
    steps = np.add.reduceat(np.maximum(rows["n_steps"].astype(np.int64), 1), edges)
    means = {name: np.add.reduceat(rows[name], edges) / steps for name in _COLUMNS}
    waits = _waits(record, ranks)
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
