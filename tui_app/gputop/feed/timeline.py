"""The last two minutes over time: phases of a step, waiting and speed in bins of equally many
milliseconds.

Unlike columns of steps, bins of time show a slow step as wide as it is, and a gap where the run
stood.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gputop.feed.snapshot import Timeline
from gputop.feed.window import HORIZON_NS
from gputop_agent.wire import PHASES
from gputop_analysis.device_clock import on_device_clock
from gputop_analysis.series import mean_ms_by_bin
from gputop_probes.record.reader import RunRecord, Table

BINS = 240
"""At most so many."""
WIDTHS_NS = tuple(round(s * 1e9) for s in (0.05, 0.1, 0.25, 0.5))
MAX_RANKS = 16
"""So many ranks, evenly spread, stand for all: bounds the work whatever the run."""
MAX_RECORDS = 8_000


def timeline(record: RunRecord, now_ns: int) -> Timeline:
    """Bins up to ``now_ns``, the mean of the ranks.

    Args:
        record: the record, or a cut of it.
        now_ns: the moment that is shown; of a run that has ended the bins end with its last step.
    """
    ranks = _spread_out(list(record.ranks()))
    tails = [tail for rank in ranks if len(tail := _tail(record, rank))]
    if not tails:
        return Timeline()
    last = max(int(tail["t_end_ns"][-1]) for tail in tails)
    ended = all(host.state.state == "ended" for host in record.hosts.values())
    end = last if ended or now_ns < last else now_ns
    start = max(end - HORIZON_NS, min(int(t["t_end_ns"][0] - t["wall_ns"][0]) for t in tails))
    width = next((w for w in WIDTHS_NS if (end - start) <= w * BINS), WIDTHS_NS[-1])
    first = start // width
    count = min(int(end // width - first + 1), BINS)
    edges = (int(end // width) + 1 - count + np.arange(count + 1)) * width
    steps, sums = np.zeros(count), np.zeros((len(PHASES), count))
    for tail in tails:
        its_steps, its_sums = _binned(tail, edges)
        steps += its_steps
        sums += its_sums
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(steps > 1e-9, sums / 1e6 / steps, np.nan)
    return Timeline(
        bin_s=width / 1e9,
        phases_ms=tuple(tuple(column) for column in means.T.tolist()),
        wait_ms=tuple(_waits(record, ranks, edges).tolist()),
        steps=tuple((steps / len(tails)).tolist()),
        of_ranks=len(tails),
    )


def _spread_out(ranks: list[int]) -> list[int]:
    return ranks[:: -(-len(ranks) // MAX_RANKS)] if ranks else ranks


def _tail(record: RunRecord, rank: int) -> Table:
    """The newest records, on the device's clock where it measured enough of their steps."""
    tail = np.asarray(record.steps(rank)[-MAX_RECORDS:])
    if not len(tail):
        return tail
    tail = tail[int(np.searchsorted(tail["t_end_ns"], tail["t_end_ns"][-1] - HORIZON_NS)) :]
    divided = on_device_clock(tail, np.asarray(record.device(rank)[-MAX_RECORDS:]))
    return tail if divided is None else divided


def _binned(rows: Table, edges: Any) -> tuple[Any, Any]:
    """Steps and nanoseconds by phase and bin; a step counts in a bin as far as it lies there."""
    ends = rows["t_end_ns"].astype(np.float64)
    starts = np.maximum(ends - rows["wall_ns"], np.concatenate([[-np.inf], ends[:-1]]))
    knots = np.stack([starts, ends], axis=1).ravel()

    def per_bin(values: Any) -> Any:
        done = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
        sums = np.stack([done[:-1], done[1:]], axis=1).ravel()
        return np.diff(np.interp(edges, knots, sums))

    phases = np.stack([per_bin(rows[f"{name}_ns"]) for name in PHASES])
    return per_bin(rows["n_steps"]), phases


def _waits(record: RunRecord, ranks: list[int], edges: Any) -> Any:
    """Exposed wait inside backward a step and bin, ms: measured there, else the mean."""
    tables = [np.asarray(record.comm(rank)[-MAX_RECORDS:]) for rank in ranks]
    by_end = ((rows["t_end_ns"], rows["wait_ns"]) for rows in tables if len(rows))
    return mean_ms_by_bin(by_end, edges)
