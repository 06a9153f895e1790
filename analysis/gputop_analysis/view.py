"""What analysis sees of a record: one window, cut the same way for every table and rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gputop_agent.contracts import Hello
from gputop_analysis.ahead import steps_ahead
from gputop_analysis.align import Aligned, align
from gputop_analysis.device_clock import on_device_clock
from gputop_analysis.series import RankSeries, picked, tail_seconds, tail_steps, thinned
from gputop_probes.record.layout import PROCESS_RANK
from gputop_probes.record.reader import RunRecord

Array = npt.NDArray[Any]

T = TypeVar("T")

SAMPLES_AT_MOST = 50_000
"""Sampler rows that are looked at, newest last."""


class RunView:
    """What was measured of a record, cut to its last ``window_steps`` steps or ``window_s``
    seconds; without either, all of it.

    ``ranks``: only these; all by default.
    """

    def __init__(
        self,
        record: RunRecord,
        window_steps: int | None = None,
        window_s: float | None = None,
        live: bool = False,
        ranks: Sequence[int] | None = None,
    ):
        self.record = record.measured()
        self.live = live
        self.baseline: RunRecord | None = None
        """An earlier run of the same thing, for the findings that compare with it."""
        self.known: dict[str, Any] = {}
        self._comm: dict[int, Array] = {}
        self.windowed = window_steps is not None or window_s is not None
        self.per_rank: dict[int, RankSeries] = {}
        for rank in record.ranks() if ranks is None else ranks:
            rows = _cut(record.steps(rank), window_steps, window_s)
            samples = record.device(rank)
            newest = samples[-SAMPLES_AT_MOST:] if self.windowed else thinned(samples)
            self.per_rank[rank] = _series(rank, rows, np.asarray(newest))
        if len(self.per_rank) > 1:
            for rank, ahead in steps_ahead(self.record.events("ddp_progress")).items():
                if rank in self.per_rank:
                    self.per_rank[rank].ahead = ahead

    @property
    def ranks(self) -> list[int]:
        """Ranks with steps, ascending."""
        return list(self.per_rank)

    @cached_property
    def common(self) -> Aligned | None:
        """Steady steps that all ranks have, side by side; None below two ranks or steps."""
        if len(self.per_rank) > 1:
            return align(list(self.per_rank.values()))
        return None

    @cached_property
    def from_ns(self) -> int:
        """When the window begins; 0 for all of the run."""
        if not self.windowed:
            return 0
        begins = [
            int(s.rows["t_end_ns"][0] - s.rows["wall_ns"][0])
            for s in self.per_rank.values()
            if len(s.rows)
        ]
        return min(begins, default=0)

    @cached_property
    def hellos(self) -> dict[int, Hello]:
        """What each rank said about itself; an empty dict for one that said nothing yet."""
        return {rank: self.record.hello(rank) or {} for rank in self.ranks}

    @cached_property
    def world_size(self) -> int:
        """Ranks of the run as they say it, at least those that were seen."""
        told_sizes = [int(h.get("world_size") or 0) for h in self.hellos.values()]
        return max([len(self.ranks), *told_sizes])

    def hello(self, rank: int | None = None) -> Hello:
        """Hello of a rank, or of the first rank."""
        if rank is None:
            rank = self.ranks[0] if self.ranks else -1
        return self.hellos.get(rank, {})

    def events(self, *types: str, rank: int | None = None) -> Iterator[dict[str, Any]]:
        """Events of the window, in the order written on each host."""
        for event in self.record.events(*types):
            if event.get("t_ns", 0) >= self.from_ns and (rank is None or event.get("rank") == rank):
                yield event

    def device(self, rank: int) -> Array:
        """Device-clock records of the window's steps."""
        rows = self.record.device(rank)
        return self._in_window(rows, rank)

    def comm(self, rank: int) -> Array:
        """Communication records of the window's steps."""
        if rank not in self._comm:
            self._comm[rank] = self._in_window(self.record.comm(rank), rank)
        return self._comm[rank]

    @cached_property
    def rank_processes(self) -> dict[int, Array]:
        """Samples of each rank's own process in the window, by rank, in time order."""
        parts_by_rank: dict[int, list[Array]] = {}
        for host in self.record.hosts.values():
            rows = np.asarray(host.process.rows[-SAMPLES_AT_MOST:])
            wanted = (rows["kind"] == PROCESS_RANK) & (rows["t_ns"] >= self.from_ns)
            places = np.flatnonzero(wanted & np.isin(rows["rank"], self.ranks))
            places = places[np.argsort(rows["rank"][places], kind="stable")]
            for part in (
                np.split(places, np.flatnonzero(np.diff(rows["rank"][places])) + 1)
                if len(places)
                else ()
            ):
                newest_rows = part[rows["pid"][part] == rows["pid"][part[-1]]]
                parts_by_rank.setdefault(int(rows["rank"][part[0]]), []).append(
                    rows.take(newest_rows)
                )
        return {rank: parts[0] for rank, parts in parts_by_rank.items()}

    def host_of(self, rank: int) -> str:
        """Name of the host a rank runs on."""
        return str(self.hello(rank).get("host") or next(iter(self.record.hosts), ""))

    def cores(self, rank: int) -> int:
        """Cores that the rank's host gives this run; 0: not known."""
        host = self.record.hosts.get(self.host_of(rank))
        return int(host.state.cpu_count) if host else 0

    def _since(self, rows: Array) -> Array:
        rows = np.asarray(rows[-SAMPLES_AT_MOST:])
        if self.windowed:
            return picked(rows, rows["t_ns"] >= self.from_ns)
        return rows

    def _in_window(self, rows: Array, rank: int) -> Array:
        series = self.per_rank.get(rank)
        if series is None or len(series.rows) == 0 or len(rows) == 0:
            return np.asarray(rows[:0])
        if not self.windowed:
            return thinned(rows)
        rows = np.asarray(rows[-(series.total_steps() + 200) :])
        return picked(rows, rows["t_end_ns"] >= self.from_ns)


def _series(rank: int, rows: Array, device: Array) -> RankSeries:
    """The records of a rank, with phases by the device's clock where it has measured enough."""
    divided = on_device_clock(rows, device)
    if divided is None:
        return RankSeries(rank, rows)
    return RankSeries(rank, divided, clock="device")


def once_per_view(compute: Callable[[RunView], T]) -> Callable[[RunView], T]:
    """Cache a function of a view on the view, for what several findings look at."""

    @wraps(compute)
    def cached(view: RunView) -> T:
        if compute.__qualname__ not in view.known:
            view.known[compute.__qualname__] = compute(view)
        return view.known[compute.__qualname__]

    return cached


def _cut(rows: Array, window_steps: int | None, window_s: float | None) -> Array:
    if len(rows) == 0:
        return np.asarray(rows)
    if window_steps is not None:
        rows = tail_steps(rows, window_steps)
    if window_s is not None:
        rows = tail_seconds(rows, window_s)
    if window_steps is None and window_s is None:
        return thinned(rows)
    return np.asarray(rows)
