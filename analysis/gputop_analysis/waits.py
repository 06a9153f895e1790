"""How long each rank waits for the others: the slow rank is the one that never waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.align import Aligned, bucketed
from gputop_analysis.series import WARM_UP_STEPS, last_attempt, picked
from gputop_analysis.step_parts import CALLED, OWN_PHASES, WAIT
from gputop_analysis.view import RunView, once_per_view

Array = npt.NDArray[Any]


ENOUGH_RECORDS = 10
LEAST_MS = 0.05
"""A step in collectives, on any rank; less is next to none."""
NEARLY_SAME = 0.8
"""Of the steps that a rank has sampled, so many that all ranks have are compared one by one."""
ARRIVALS = "arrival times of collectives"
"""Source that knows who came last, but not how long the collective itself took."""
AT_LEAST_SEEN = 0.5
"""Of the difference between ranks that arrivals show, by the time in calls."""
FEW_ARRIVALS, FAR_APART = 4, 0.1
"""Steps in collectives for each step of known arrivals; and part of a step's time."""
DDP_TIMERS = "DDP's timers"
COLLECTIVES = "time in collectives"
"""Source that does not tell waiting for the network from waiting for another rank."""


@dataclass(frozen=True)
class Waits:
    """Exposed waiting per step, buckets of steps x ranks, all ranks in the same buckets."""

    ms: Array
    ranks: tuple[int, ...]
    source: str
    backward_compute_ms: Array | None = None
    """Backward without the waiting in it, same shape; None where DDP does not tell."""
    beside_ms: Array | None = None
    """What of ``ms`` lies outside backward, and so is not of DDP's timers; None where all is of one
    source.
    """


def mean_wait_ms(view: RunView, rank: int) -> float:
    """Mean wait of one rank for the others, a step: every screen's ``wait``. NaN where nothing
    measures it.

    What DDP's timers found inside backward, and the time in collectives that are called from
    Python; where neither tells, how much later than it the last rank came to its collectives.
    """
    hidden, called = hidden_wait_ms(view, rank), view.per_rank[rank].mean_ms("comm_ns")
    if hidden == hidden or called:
        return float(np.nansum((hidden, called)))
    waited = None
    if any(True for _ in view.events("flight_recorder", rank=rank)):
        waited = waits(view)
    if waited is None or rank not in waited.ranks:
        return float("nan")
    return float(waited.ms[:, waited.ranks.index(rank)].mean())


def with_wait(measured: Mapping[str, Array], hidden: Array) -> dict[str, Array]:
    """Times by phase, in any unit, as times by part: what of the wait lies hidden in backward is
    taken out of it, and after it stands all waiting.
    """
    hidden = np.minimum(hidden, measured["backward"])
    parts = {}
    for phase in OWN_PHASES:
        parts[phase] = measured[phase]
        if phase == "backward":
            parts[phase] = measured[phase] - hidden
            parts[WAIT] = measured[CALLED] + hidden
    return parts


def hidden_wait_ms(view: RunView, rank: int) -> float:
    """Mean exposed wait a step in a rank's backward by DDP's timers past warm-up; NaN: none."""
    return _hidden_waits_ms(view)[rank]


@once_per_view
def _hidden_waits_ms(view: RunView) -> dict[int, float]:
    return {rank: _mean_hidden_ms(view.comm(rank)) for rank in view.ranks}


def _mean_hidden_ms(records: Array) -> float:
    rows = _one_a_step(records)
    if not len(rows):
        return float("nan")
    settled = last_attempt(rows)
    settled = settled[settled["step"] >= WARM_UP_STEPS]
    return float((settled if len(settled) >= ENOUGH_RECORDS else rows)["wait_ns"].mean()) / 1e6


def straggling_shares(view: RunView) -> dict[int, float]:
    """By rank, its wait beyond that of the rank that waits least in the same step."""
    waited = waits(view)
    if waited is None:
        return {}
    least_ms, own_ms = waited.ms.min(axis=1).mean(), waited.ms.mean(axis=0)
    shares = 1 - least_ms / np.maximum(own_ms, 1e-12)
    return {
        rank: float(np.clip(share, 0, 1)) for rank, share in zip(waited.ranks, shares, strict=True)
    }


@once_per_view
def waits(view: RunView) -> Waits | None:
    """Waits of all ranks over the steady common steps; None where no source covers every rank.

    Sources, best first: DDP's own logging data, arrival times in the flight recorder unless they
    are of few steps or the calls contradict them, time in synchronous collectives.
    """
    common = view.common
    if common is None or len(common) < 10:
        return None
    from_ddp = _from_ddp(view, common)
    if from_ddp is not None:
        return from_ddp
    arrivals, called = _from_arrivals(view, common), in_collectives(common)
    if arrivals is None or called is None:
        return arrivals or called
    is_better = _tells_more(called, arrivals, common) or _contradicts(called, arrivals)
    return called if is_better else arrivals


def _contradicts(called: Waits, arrivals: Waits) -> bool:
    """Whether the time in calls, which holds all that ranks wait for one another, shows less than
    half of what the arrivals say that one rank waits longer than another.
    """
    calls_ms, arrivals_ms = called.ms.mean(axis=0), arrivals.ms.mean(axis=0)
    least, most = int(np.argmin(arrivals_ms)), int(np.argmax(arrivals_ms))
    apart_ms = float(arrivals_ms[most] - arrivals_ms[least])
    holds_them = float(calls_ms.max()) >= float(arrivals_ms[most])
    return holds_them and float(calls_ms[most] - calls_ms[least]) < AT_LEAST_SEEN * apart_ms


def _tells_more(called: Waits, arrivals: Waits, common: Aligned) -> bool:
    """Whether the newest arrivals are few, where a step has many collectives, and ranks part in the
    time that they spend in them by more than the root of a broadcast does.
    """
    means_ms = called.ms.mean(axis=0)
    apart_ms = float(means_ms.max() - means_ms.min())
    step_ms = float(common.per_step_ms("wall_ns").mean())
    return len(called.ms) >= FEW_ARRIVALS * len(arrivals.ms) and apart_ms >= FAR_APART * step_ms


def _from_ddp(view: RunView, common: Aligned) -> Waits | None:
    tables = [_numbered_alike(_one_a_step(view.comm(rank)), view, rank) for rank in common.ranks]
    if any(len(t) < 10 for t in tables):
        return None
    rows = [_steady_rows(t, common) for t in tables]
    if any(len(r) < 10 for r in rows):
        return None
    edges = _coarser_edges(common, rows)
    counts, (wait, backward) = _bucket_means(rows, ("wait_ns", "backward_compute_ns"), edges)
    keep = (counts >= 1).all(axis=1)
    wait_ms, source = wait / 1e6, DDP_TIMERS
    beside_ms, beside = np.zeros_like(wait_ms), _beside_backward(view, common)
    if beside is not None:
        waited, beside_source = beside
        beside_ms, covered = _by_bucket(common, waited, edges)
        source, keep = f"{source}, and {beside_source}", keep & covered
    if keep.sum() < 10:
        return None
    return Waits(
        (wait_ms + beside_ms)[keep],
        common.ranks,
        source,
        backward_compute_ms=backward[keep] / 1e6,
        beside_ms=beside_ms[keep],
    )


def _numbered_alike(rows: Array, view: RunView, rank: int) -> Array:
    """Without what the rank did alone before the others, so that a step has one number on all."""
    ahead = view.per_rank[rank].ahead
    if not ahead:
        return rows
    together = rows[rows["step"] >= ahead].copy()
    together["step"] -= ahead
    return together


def _one_a_step(rows: Array) -> Array:
    """The records of a rank with several DDP modules, which each tell of a step, as one a step: the
    longest wait and the longest backward of them, as their backwards may run at the same time.
    """
    begins = np.flatnonzero(np.diff(rows["step"].astype(np.int64), prepend=-1) != 0)
    if len(begins) == len(rows):
        return rows
    merged = rows[begins].copy()
    for name in ("wait_ns", "backward_compute_ns"):
        merged[name] = np.maximum.reduceat(rows[name], begins)
    return merged


def _beside_backward(view: RunView, common: Aligned) -> tuple[Array, str] | None:
    """Waiting outside backward, ms a step, steps x ranks, and where it is; None where none is.

    Collectives called from Python, DDP's broadcast of its buffers among them, are waiting; older
    records count that broadcast as forward.
    """
    called = _in_calls_ms(common)
    if called is not None:
        return called, "other collectives"
    synced = any(event.get("broadcast_buffers") for event in view.events("ddp"))
    if synced and (view.hello(common.ranks[0]).get("model") or {}).get("buffer_bytes"):
        return _wait_at_buffers(common), "forwards that wait for its buffers"
    return None


def _wait_at_buffers(common: Aligned) -> Array:
    """Waiting in a broadcast that a forward begins with: a rank that comes early waits there for
    the last one, no longer than it is early, nor than its forward takes longer than the last one's.
    """
    before = sum(
        common.per_step_ms(f"{phase}_ns") for phase in ("data", "h2d", "optimizer", "other")
    )
    forward = common.per_step_ms("forward_ns")
    last = np.asarray(before).argmax(axis=1)[:, None]
    early = np.take_along_axis(before, last, axis=1) - before
    longer = forward - np.take_along_axis(forward, last, axis=1)
    return np.clip(np.minimum(early, longer), 0, None)


def _by_bucket(common: Aligned, waited: Array, edges: Array) -> tuple[Array, Array]:
    """Values of the common steps as means of wider buckets, and a mask of the buckets covered."""
    starts, size = common.edges[:-1][common.keep], common.bucket_steps
    count = np.full(len(starts), float(size))
    spread = [bucketed(starts, starts + size, column * size, count, edges) for column in waited.T]
    steps = spread[0][1]
    return np.stack([total for total, _ in spread], axis=1) / np.maximum(steps, 1e-9)[
        :, None
    ], steps > 0


def _steady_rows(rows: Array, common: Aligned) -> Array:
    """Communication records of steps that lie in kept buckets."""
    bucket = (rows["step"].astype(np.int64) - common.edges[0]) // common.bucket_steps
    inside = (bucket >= 0) & (bucket < len(common.keep))
    inside[inside] = common.keep[bucket[inside]]
    return last_attempt(picked(rows, inside))


def _coarser_edges(common: Aligned, rows: list[Array]) -> Array:
    """Edges so wide that each rank, of its own sampled steps, usually has one in a bucket: those of
    DDP's timers are the same on all ranks.
    """
    gaps = [np.diff(r["step"].astype(np.int64)) for r in rows]
    gap = max(float(np.sort(gap)[int(0.9 * len(gap))]) for gap in gaps)
    if gap <= common.bucket_steps:
        size = common.bucket_steps
    elif _same_steps(rows):
        size = max(common.bucket_steps, int(np.median(gaps[0])))
    else:
        size = int(2 * gap)
    return np.arange(common.edges[0], common.edges[-1] + size, size)


def _same_steps(rows: list[Array]) -> bool:
    """Whether nearly all steps that one rank has sampled, all have."""
    shared = set.intersection(*(set(r["step"].tolist()) for r in rows))
    return len(shared) >= NEARLY_SAME * max(map(len, rows))


def _bucket_means(
    rows: list[Array], columns: tuple[str, ...], edges: Array
) -> tuple[Array, list[Array]]:
    """Records per bucket and rank, and the means of the columns over them."""
    buckets, width = len(edges) - 1, int(edges[1] - edges[0])
    counts = np.empty((buckets, len(rows)))
    means = [np.empty((buckets, len(rows))) for _ in columns]
    for index, row in enumerate(rows):
        at = (row["step"].astype(np.int64) - edges[0]) // width
        inside = (at >= 0) & (at < buckets)
        at = at[inside]
        counts[:, index] = np.bincount(at, minlength=buckets)
        for mean, column in zip(means, columns, strict=True):
            mean[:, index] = np.bincount(at, weights=row[column][inside], minlength=buckets)
    return counts, [mean / np.maximum(counts, 1e-9) for mean in means]


def in_collectives(common: Aligned) -> Waits | None:
    """Time of all ranks in synchronous collectives; None where there is next to none."""
    called = _in_calls_ms(common)
    return None if called is None else Waits(called, common.ranks, COLLECTIVES)


def _in_calls_ms(common: Aligned) -> Array | None:
    """Time in collectives called from Python, steps x ranks; None where there is next to none."""
    called = common.per_step_ms(f"{CALLED}_ns")
    return called if (called.mean(axis=0) > LEAST_MS).any() else None


def _from_arrivals(view: RunView, common: Aligned) -> Waits | None:
    """Last arrival at a collective minus a rank's own, summed over each rank's collectives of a
    step.

    Only where all ranks share one host, and so one clock.
    """
    if len({view.host_of(rank) for rank in common.ranks}) > 1:
        return None
    arrivals = {rank: _arrivals(view, rank) for rank in common.ranks}
    shared = set.intersection(*(set(a) for a in arrivals.values()))
    if len(shared) < 20:
        return None
    keys = sorted(shared, key=lambda k: arrivals[common.ranks[0]][k])
    times = np.array([[arrivals[rank][key] for rank in common.ranks] for key in keys], np.float64)
    waited = times.max(axis=1, keepdims=True) - times
    ends = view.per_rank[common.ranks[0]].rows["t_end_ns"]
    _, step_of, counts = np.unique(
        np.searchsorted(ends, times[:, 0]), return_inverse=True, return_counts=True
    )
    sums = np.stack([np.bincount(step_of, weights=column) for column in waited.T], axis=1)
    # a dump of the newest collectives begins and ends within a step
    complete = counts >= np.median(counts)
    if np.count_nonzero(complete) < 10:
        return None
    return Waits(sums[complete] / 1e6, common.ranks, ARRIVALS)


def _arrivals(view: RunView, rank: int) -> dict[tuple[str, int], int]:
    return {
        (str(entry.get("group")), int(entry.get("seq", -1))): int(entry["created_ns"])
        for event in view.events("flight_recorder", rank=rank)
        for entry in event.get("entries", ())
        if entry.get("created_ns") and not entry.get("p2p")
    }
