"""What the agent saw of loaders and samplers of workers, summed up once a view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from gputop_analysis.model import Input, Proof
from gputop_analysis.view import SAMPLES_AT_MOST, Array, RunView, once_per_view
from gputop_probes.record.layout import PROCESS_WORKER

ENOUGH_LOOKS = 12
"""Fewer looks than this are not judged."""
SOMETIMES_EMPTY = 0.25
"""Of the looks. With an empty queue more seldom than this, training holds batches up."""
_SAME = ("dataset", "dataset_length", "batch_size", "num_workers")
"""What tells the loader that trains from one that evaluates."""


@dataclass
class Looks:
    """How often a look at a rank's loader saw what."""

    rank: int
    looks: int = 0
    empty: int = 0
    """No batch lay ready."""
    fetching: int = 0
    """The training was inside a fetch."""
    behind: int = 0
    """It waited for one worker although later batches were there."""
    unpacking: int = 0
    """It was rebuilding a batch that had arrived."""
    waited_for: Counter[int] = field(default_factory=Counter)
    """By worker: looks of ``behind``."""
    epochs: int = 0
    """Iterators that were made."""
    starts_ms: float = 0.0
    """Ending the iterator before them, and making them."""
    firsts_ms: float = 0.0
    """Their first fetches."""
    states: Counter[str] = field(default_factory=Counter)
    """By state in /proc of the worker that made the batch that a fetch waited for: looks."""

    def add(self, event: dict[str, Any]) -> None:
        """Count one ``loader`` event."""
        for name in ("looks", "empty", "fetching", "behind", "unpacking", "epochs"):
            setattr(self, name, getattr(self, name) + int(event.get(name) or 0))
        self.starts_ms += float(event.get("starts_ms") or 0.0)
        self.firsts_ms += float(event.get("firsts_ms") or 0.0)
        for waited in event.get("waited_for") or ():
            self.waited_for[int(waited["worker"])] += int(waited["looks"])
        self.states.update(event.get("states") or {})

    @property
    def waiting(self) -> int:
        """Looks at a fetch that waited for a worker."""
        return self.states.total()

    @property
    def ready_in_advance(self) -> bool:
        """Whether a batch surely lay ready nearly always, so that no worker was late."""
        return (
            self.looks >= ENOUGH_LOOKS
            and surely(self.looks - self.empty, self.looks) > 1.0 - SOMETIMES_EMPTY
        )

    def proof(
        self, what: str, seen: int, of: int, threshold: float, formula: str, *inputs: Input
    ) -> Proof:
        """Of a finding: ``what`` was surely seen in more than ``threshold`` of the looks."""
        source = f"loader events, rank {self.rank}"
        return Proof(
            statistic=f"lower end of the 95 % Wilson interval of looks at the loader {what}",
            value=100 * surely(seen, of),
            threshold=100 * threshold,
            unit="%",
            formula=formula,
            inputs=(
                Input(f"looks {what}", seen, "", source),
                Input("looks", of, "", source),
                *inputs,
            ),
        )


def surely(seen: int, of: int) -> float:
    """Lower end of the 95 % interval of a share that was counted (Wilson 1927); 0 for no counts."""
    if of <= 0:
        return 0.0
    share, z = seen / of, 1.96
    centre = share + z * z / (2 * of)
    spread = z * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, (centre - spread) / (1 + z * z / of))


@once_per_view
def looks(view: RunView) -> dict[int, Looks]:
    """By rank, of the loader that feeds the training."""
    looks_by_rank: dict[int, Looks] = {}
    for rank, event in _of_training(view):
        looks_by_rank.setdefault(rank, Looks(rank)).add(event)
    return looks_by_rank


@once_per_view
def epoch_starts(view: RunView) -> dict[int, Array]:
    """By rank: steps in which an epoch of the training began, and the milliseconds it took, as two
    rows.

    The milliseconds are those of the fetch that found the last epoch's end, of the making of the
    new iterator and of the first fetch from it.
    """
    starts_by_rank: dict[int, list[tuple[float, float]]] = {}
    for rank, event in _of_training(view):
        for start in event.get("epoch_starts") or ():
            parts = [float(start.get(name) or 0.0) for name in ("end_ms", "start_ms", "first_ms")]
            starts_by_rank.setdefault(rank, []).append((float(start.get("step") or 0), sum(parts)))
    return {rank: np.array(sorted(starts)).T for rank, starts in starts_by_rank.items()}


def _of_training(view: RunView) -> Iterator[tuple[int, dict[str, Any]]]:
    for event in view.events("loader"):
        rank = int(event.get("rank", -1))
        loader = view.hellos.get(rank, {}).get("dataloader")
        if loader and all(event.get(name) == loader.get(name) for name in _SAME):
            yield rank, event


@dataclass(frozen=True, slots=True)
class Workers:
    """The worker processes of one rank while it trained."""

    count: int
    cpu: float
    """Cores that one of them used on average, 0 to 1."""
    disk: float
    """Share of the samples in which one waited for a disk or a file server (state D), 0 to 1."""
    read_bytes_per_s: float
    """From storage, all of them together."""
    samples: int
    queued: float = 0.0
    """Part of the time in which one of them waited for a core on average, 0 to 1."""


RESTING = 0.1
"""Of the CPU time of the busiest worker: one that uses less has nothing to do."""


@once_per_view
def workers(view: RunView) -> dict[int, Workers]:
    """By rank; ranks whose workers were sampled fewer than three times are left out."""
    crews: dict[int, Workers] = {}
    begins = [
        int(s.rows["t_end_ns"][s.steady][0]) for s in view.per_rank.values() if s.steady.any()
    ]
    for host in view.record.hosts.values() if begins else ():
        rows = host.process.rows[-SAMPLES_AT_MOST:]
        rows = rows[int(np.searchsorted(rows["t_ns"], max(view.from_ns, min(begins)))) :]
        rows = rows[rows["kind"] == PROCESS_WORKER]
        for rank in np.unique(rows["rank"]):
            if rank < 0:
                continue
            number = (view.hello(int(rank)).get("dataloader") or {}).get("num_workers") or 0
            rows_of_rank = _that_compute(rows[rows["rank"] == rank], number)
            if crew := _workers(rows_of_rank):
                crews[int(rank)] = crew
    return crews


def _that_compute(rows: Array, number: int) -> Array:
    """Without processes that rest while others compute, where there are more than the loader has
    workers: they are those of an evaluation.
    """
    pids = np.unique(rows["pid"])
    if len(pids) <= number:
        return rows
    spent_ns = np.array([np.ptp(rows["cpu_ns_total"][rows["pid"] == pid]) for pid in pids])
    lasted_ns = np.array([np.ptp(rows["t_ns"][rows["pid"] == pid]) for pid in pids])
    used = spent_ns / np.maximum(lasted_ns, 1)
    return rows[np.isin(rows["pid"], pids[used >= RESTING * used.max()])]


def _workers(rows: Array) -> Workers | None:
    rows = rows[np.argsort(rows["pid"], kind="stable")]  # each one's samples in the order of time
    same = np.diff(rows["pid"]) == 0
    seconds = np.diff(rows["t_ns"])[same] / 1e9
    if len(seconds) < 2 or seconds.sum() <= 0:
        return None
    cpu_s = float(np.diff(rows["cpu_ns_total"])[same].sum() / 1e9)
    read = np.maximum(np.diff(rows["read_bytes_total"])[same], 0)
    lasted = max(float(rows["t_ns"].max() - rows["t_ns"].min()) / 1e9, 1e-9)
    return Workers(
        len(np.unique(rows["pid"])),
        cpu_s / float(seconds.sum()),
        float(np.mean(rows["state"] == ord("D"))),
        float(read.sum()) / lasted,
        len(rows),
        float(np.maximum(np.diff(rows["run_wait_ns_total"])[same], 0).sum() / 1e9 / seconds.sum()),
    )
