"""Memory that the worker processes of a loader take and do not give back.

Most often the pages of a dataset: forked workers share them until each writes its own count of
references into every Python object that it touches (pytorch/pytorch#13246).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np

from gputop_analysis.findings.memory.memory_in_use import NAMED_BYTES
from gputop_analysis.findings.memory.steady_growth import (
    MIN_GROWTH_BYTES,
    WINDOWS,
    Growth,
    steady_growth,
)
from gputop_analysis.stats import mann_kendall
from gputop_analysis.view import Array, RunView

COLUMN = "loader_worker.memory_bytes"
MOST_WORKERS = 0.5
"""Of those that were looked at: so many must grow for it to be what the dataset does."""
LEAST_BYTES = 8 << 20
"""Of one worker, however many there are: readings differ by less."""
LEAST_READINGS, GOES_ON = 5, 0.15
"""Of one worker where a collection that gets longer is known, too; part of the growth in the second
half of them.
"""


def workers_growth(view: RunView, rank: int) -> Growth | None:
    """How the memory of a rank's workers grows, all of its loader's together; None where it does
    not.
    """
    key = f"growth of the workers of {rank}"
    if key not in view.known:
        view.known[key] = _workers_growth(view, rank)
    return view.known[key]


def grows_in(view: RunView, rank: int) -> tuple[str, str]:
    """The collection of the data set that most of a rank's workers have seen to grow, and the line
    that fills it; empty where they are not known.
    """
    growing = Counter(
        (str(event["grown_in"]), str(event.get("grown_site") or ""))
        for event in view.events("loader_worker", rank=rank)
        if event.get("grown_in")
    )
    return growing.most_common(1)[0][0] if growing else ("", "")


def _workers_growth(view: RunView, rank: int) -> Growth | None:
    count = (view.hello(rank).get("dataloader") or {}).get("num_workers") or 0
    if not count:
        return None
    least_bytes = max(LEAST_BYTES, MIN_GROWTH_BYTES / count)
    readings = _readings(view, rank)
    grown = []
    for t_ns, sizes in readings:
        growth = steady_growth(
            t_ns, sizes, rank=rank, column=COLUMN, least_bytes=least_bytes, few=True
        )
        if growth is None and grows_in(view, rank)[0]:
            growth = _rising(t_ns, sizes, rank)
        if growth is not None:
            grown.append(growth)
    if not grown or len(grown) <= MOST_WORKERS * len(readings):
        return None
    largest = max(grown, key=lambda growth: growth.bytes_per_s)
    mean = sum(growth.bytes_per_s for growth in grown) / len(grown)
    return replace(largest, bytes_per_s=mean * count)


def _rising(t_ns: Array, sizes: Array, rank: int) -> Growth | None:
    """Of fewer readings than windows: where each but the first, which finds what a worker begins
    with, is above the one before, and they have not come to rest.
    """
    if not LEAST_READINGS <= len(sizes) < WINDOWS:
        return None
    values, seconds = sizes[1:].astype(float), (t_ns[1:] - t_ns[1]) / 1e9
    growth, late = values[-1] - values[0], values[-1] - values[len(values) // 2]
    if np.diff(values).min() <= 0 or growth < NAMED_BYTES or late < GOES_ON * growth:
        return None
    return Growth(
        rank=rank,
        column=COLUMN,
        first_bytes=values[0],
        last_bytes=values[-1],
        bytes_per_s=growth / seconds[-1],
        span_s=float(seconds[-1]),
        p=mann_kendall(values).p,
        readings=len(sizes),
    )


def _readings(view: RunView, rank: int) -> list[tuple[Array, Array]]:
    """Times (ns) and sizes (bytes) of each worker process that was read, in time order."""
    by_process: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in view.events("loader_worker", rank=rank):
        times, sizes = event.get("memory_ns", ()), event.get("memory_bytes", ())
        if len(times) == len(sizes):  # else the record is damaged there
            by_process[int(event.get("pid", -1))].extend(zip(times, sizes, strict=True))
    columns = [np.array(sorted(pairs), np.int64) for pairs in by_process.values() if pairs]
    return [(pairs[:, 0], pairs[:, 1]) for pairs in columns]
