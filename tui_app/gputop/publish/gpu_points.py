"""GPU samples beside the steps in whose time they were taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_analysis.hardware import gib, known_mean
from gputop_probes.record.reader import HostFiles, RunRecord

Array = npt.NDArray[Any]

_READ_AS_THEY_ARE = ("util_pct", "power_w", "temperature_c", "sm_clock_mhz")


class GpuPoints:
    """Hands out each sample of a record once: to the first point of time that is after it."""

    def __init__(self, record: RunRecord):
        self._record = record
        self._done: dict[str, int] = {}

    def new(self, ends_ns: Array) -> Iterator[tuple[int, dict[str, float]]]:
        """Place among the ends of steps, and means of a device's samples up to that end.

        Args:
            ends_ns: in order. Samples after the last wait for the next call, those before the very
                first are of no step.
        """
        for host in self._record.hosts.values():
            first = self._done.get(host.name, 0)
            rows = np.asarray(host.gpu.rows[first:])
            places = np.searchsorted(ends_ns, rows["t_ns"])
            later = np.flatnonzero(places == len(ends_ns))
            taken = int(later[0]) if len(later) else len(rows)
            self._done[host.name] = first + taken
            rows, places = rows[:taken], places[:taken]
            if first == 0:
                rows, places = rows[places > 0], places[places > 0]
            for place, index, samples in _grouped(host, rows, places):
                yield place, _means(f"gputop/{host.name}/gpu{index}", samples)


def _grouped(host: HostFiles, rows: Array, places: Array) -> Iterator[tuple[int, int, Array]]:
    """Place, device and samples of each device that was measured, not added for show."""
    added = {info.index for info in host.state.gpus if info.added}
    order = np.lexsort((rows["index"], places))
    rows, places = rows[order], places[order]
    is_next = (np.diff(places) != 0) | (np.diff(rows["index"]) != 0)
    edges = [0, *(np.flatnonzero(is_next) + 1).tolist(), len(rows)]
    for begin, end in itertools.pairwise(edges):
        if begin < end and int(rows["index"][begin]) not in added:
            yield int(places[begin]), int(rows["index"][begin]), rows[begin:end]


def _means(head: str, rows: Array) -> dict[str, float]:
    """Means of what the driver told; of memory the most."""
    values = {f"{head}/{name}": known_mean(rows[name]) for name in _READ_AS_THEY_ARE}
    values[f"{head}/memory_used_gib"] = gib(rows["memory_used_bytes"].max())
    return {name: value for name, value in values.items() if math.isfinite(value)}
